//! Tests of the report.

use super::*;

fn warn() -> Finding {
    Finding::ok("sysctl", "it is odd").warn("it may surprise", "change it")
}

fn fail() -> Finding {
    Finding::ok("kernel", "it is old").fail("nothing works", "upgrade")
}

#[test]
fn worst_finding_is_that_of_the_report() {
    let worst = |findings: Vec<Finding>| CheckReport::new(findings).worst;
    assert_eq!(worst(vec![]), Level::Ok);
    assert_eq!(worst(vec![Finding::ok("kernel", "new")]), Level::Ok);
    assert_eq!(worst(vec![warn(), Finding::ok("kernel", "new")]), Level::Warn);
    assert_eq!(worst(vec![warn(), fail()]), Level::Fail);
}

#[test]
fn text_has_findings_reasons_and_fixes() {
    let report = CheckReport::new(vec![Finding::ok("rules", "none"), warn(), fail()]);
    let expected = "\
OK    rules         none
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
fn json_has_the_same_fields() {
    let json = serde_json::to_value(CheckReport::new(vec![warn()])).unwrap();
    assert_eq!(json["worst"], "WARN");
    assert_eq!(json["findings"][0]["level"], "WARN");
    assert_eq!(json["findings"][0]["fix"], "change it");
}
