//! A guest boots, runs a program, reports its exit status, and leaves nothing behind.

use std::panic;

use super::*;
use crate::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(60);

fn shell(script: &str) -> GuestResult {
    run(Path::new("/bin/sh"), &["-c", script], TIMEOUT)
}

#[test]
fn program_runs_in_a_kernel_with_ipvs() {
    let written = format!("/var/tmp/fairlead-uml-{}", std::process::id());
    let script = format!(
        "modprobe -a ip_vs ip_vs_rr dummy && ip link add kube-ipvs0 type dummy && ipvsadm -Ln && \
         touch {written} && ls {written} && echo \"it's\" done >&2; exit 3"
    );
    let finished = shell(&script);
    assert_eq!(finished.status, 3);
    let has_line = |line: &str| finished.output.iter().any(|other| other == line);
    assert!(has_line("Prot LocalAddress:Port Scheduler Flags") && has_line("it's done"), "{finished:?}");
    assert!(has_line(&written) && !Path::new(&written).exists());
}

#[test]
fn test_runs_itself_inside() {
    inside(|| assert!(fs::read_to_string("/proc/cpuinfo").unwrap().contains("UML")));
}

#[test]
fn test_that_did_not_run_has_not_passed() {
    let finished = |status, line: &str| GuestResult { status, output: vec![line.to_owned()], shared: None };
    let passed = |finished: GuestResult| panic::catch_unwind(|| assert_passed("it", &finished)).is_ok();
    assert!(passed(finished(0, "test result: ok. 1 passed; 0 failed; 0 ignored")));
    assert!(!passed(finished(0, "test result: ok. 0 passed; 0 failed; 0 ignored")));
    assert!(!passed(finished(101, "test result: ok. 1 passed; 0 failed; 0 ignored")));
}

#[test]
fn hanging_guest_is_killed_with_all_its_processes() {
    let hung = panic::catch_unwind(|| run(Path::new("/bin/sleep"), &["1000"], Duration::from_secs(8)));
    let message = hung.expect_err("the guest never ends").downcast::<String>().expect("a message");
    assert!(message.contains("did not end in time"), "{message}");
    eventually("its processes are gone", TIMEOUT, || (processes(&prefix()) == 0).then_some(()));
}

/// The number of processes whose command lines contain `mark`.
fn processes(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").expect("procfs").flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(mark)).count()
}
