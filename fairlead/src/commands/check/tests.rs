//! Reports: what people read, and what the exit code says.

use super::*;

fn warn() -> Finding {
    Finding::warn("sysctl", "it is odd", "it may surprise", "change it")
}

fn fail() -> Finding {
    Finding::fail("kernel", "it is old", "nothing works", "upgrade")
}

#[test]
fn the_worst_finding_decides() {
    let code = |findings: Vec<Finding>| format!("{:?}", Report::new(findings).exit_code());
    let expected = |code: u8| format!("{:?}", ExitCode::from(code));
    assert_eq!(code(vec![]), expected(0));
    assert_eq!(code(vec![Finding::ok("kernel", "new")]), expected(0));
    assert_eq!(code(vec![warn(), Finding::ok("kernel", "new")]), expected(2));
    assert_eq!(code(vec![warn(), fail()]), expected(1));
}

#[test]
fn people_read_what_why_and_what_to_do() {
    let report = Report::new(vec![Finding::ok("ports", "free"), warn(), fail()]);
    let expected = "\
OK    ports         free
WARN  sysctl        it is odd
                    why: it may surprise
                    fix: change it
FAIL  kernel        it is old
                    why: nothing works
                    fix: upgrade
1 FAIL, 1 WARN, 1 OK
";
    assert_eq!(report.text(), expected);
}

#[test]
fn scripts_read_the_same() {
    let json = serde_json::to_value(Report::new(vec![warn()])).unwrap();
    assert_eq!(json["worst"], "WARN");
    assert_eq!(json["findings"][0]["level"], "WARN");
    assert_eq!(json["findings"][0]["fix"], "change it");
}
