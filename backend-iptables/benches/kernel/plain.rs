//! The iptables programs alone, in their own network namespace.

use std::{
    io::Write as _,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use backend::NodeState;
use iptables::Variant;
use netlink::testing::in_netns;

/// A thread in a namespace without rules.
pub(crate) struct Plain {
    variant: Variant,
    jobs: Sender<Job>,
    done: Receiver<Duration>,
}

enum Job {
    /// Runs a program with this input.
    Restore(String, String),
    /// Lets the backend write the rules of a state.
    Fill(Box<NodeState>),
}

impl Plain {
    pub(crate) fn new(variant: Variant) -> Self {
        let (jobs, todo) = channel();
        let (tell, done) = channel();
        // It ends when the other end of its channel is dropped.
        thread::spawn(move || {
            in_netns(move || {
                for job in todo {
                    let took = match job {
                        Job::Restore(program, text) => restore(&program, &text),
                        Job::Fill(state) => {
                            crate::runtime().block_on(crate::time(&mut crate::backend(variant), &state))
                        }
                    };
                    let _ = tell.send(took);
                }
            });
        });
        Self { variant, jobs, done }
    }

    /// Restores the saved rules of both families.
    pub(crate) fn load(&self, saved: [String; 2]) -> Duration {
        let [v4, v6] = saved;
        self.do_it(Job::Restore(format!("iptables-{}-restore", self.variant), v4))
            + self.do_it(Job::Restore(format!("ip6tables-{}-restore", self.variant), v6))
    }

    /// Writes the rules of a state with the backend.
    pub(crate) fn fill(&self, state: NodeState) {
        self.do_it(Job::Fill(Box::new(state)));
    }

    /// Restores a script for IPv4.
    pub(crate) fn restore(&self, text: &str) -> Duration {
        self.do_it(Job::Restore(format!("iptables-{}-restore", self.variant), text.to_owned()))
    }

    fn do_it(&self, job: Job) -> Duration {
        self.jobs.send(job).unwrap();
        self.done.recv().expect("the plain tools failed")
    }
}

/// The rules of both families in the namespace of the thread, without comments.
pub(crate) fn saved(variant: Variant) -> [String; 2] {
    ["iptables", "ip6tables"].map(|family| {
        let output = Command::new(format!("{family}-{variant}-save")).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    })
}

fn restore(program: &str, text: &str) -> Duration {
    let start = Instant::now();
    let mut child = Command::new(program).args(["--noflush", "--wait", "60"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    start.elapsed()
}
