//! Backends and commands that a [`FaultPoint`] interrupts.

use std::{
    process::{Command, ExitStatus},
    time::Duration,
};

use super::{Deployment, READY, TIMEOUT};
use crate::{
    cluster::Node,
    deployment::{fairlead, kernel_changes::record_all_tools},
    fault::{FaultPoint, Faults},
    process::Process,
};

/// Timeout of SIGKILL.
const KILL_DELAY: Duration = Duration::from_millis(300);

impl Deployment {
    /// Starts the backend of the first node, which runs into a fault, and waits until it has programmed a state or has
    /// ended. Returns whether it reached the point.
    #[track_caller]
    pub fn start_backend_with(&mut self, point: FaultPoint) -> bool {
        let (netns, mut command) = (self.first_node().netns.clone(), self.backend_command(0));
        record_all_tools(&mut command, &self.notes(self.first_node()));
        let command = self.faults().inject(point, command);
        let name = self.first_node().name.clone();
        let process = self.spawn(&netns, &name, command);
        let done = self.faults().find(&process, 0, TIMEOUT, |line| line.contains(READY));
        self.end_fault(point, process, None, done.is_some())
    }

    /// Makes a change while the backend of the first node runs into a fault, and waits until it has programmed the
    /// change or has ended. Returns whether it reached the point.
    #[track_caller]
    pub fn change_with(&mut self, point: FaultPoint, change: impl FnOnce(&mut Self)) -> bool {
        let netns = self.first_node().netns.clone();
        let process = self.backends[0].process.take().expect("the backend runs");
        let tracer = self.faults().inject_running(point, &process, &netns);
        self.backends[0].process = Some(process);
        change(self);
        let (revision, marks) = self.fence();
        let process = self.backends[0].process.take().expect("the backend runs");
        let done = self.faults().find(&process, marks[0], TIMEOUT, |line| self.is_programmed(line, revision));
        self.end_fault(point, process, tracer, done.is_some())
    }

    /// Runs `fairlead` with these arguments on the first node, which runs into a fault, to its end. Returns whether it
    /// reached the point, and its status.
    #[track_caller]
    pub fn run_with(&mut self, point: FaultPoint, arguments: &[&str]) -> (bool, ExitStatus) {
        let netns = self.first_node().netns.clone();
        let mut command = fairlead();
        command.args(arguments);
        record_all_tools(&mut command, &self.notes(self.first_node()));
        let faults = self.faults();
        let process = self.spawn(&netns, "interrupted", faults.inject(point, command));
        // The tracer has the same output, and ends after the program.
        let _ = faults.find(&process, 0, TIMEOUT, |_| false);
        let status = process.wait(TIMEOUT).expect("the command ends");
        (faults.finish(&process, None), status)
    }

    /// Whether the backend of the first node runs.
    pub fn backend_runs(&self) -> bool {
        self.backends[0].process.is_some()
    }

    /// Keeps a backend that has not ended. `is_done`: it has programmed what was waited for.
    #[track_caller]
    fn end_fault(&mut self, point: FaultPoint, process: Process, tracer: Option<Process>, is_done: bool) -> bool {
        let log = || process.lines_since(0).join("\n");
        let (is_recorded, kills) = (self.faults().finish(&process, tracer), point.fault.kills());
        let deadline = match is_done {
            true if !kills => Duration::ZERO,
            // The tracer detaches while it kills.
            true if !is_recorded => KILL_DELAY,
            _ => TIMEOUT,
        };
        // An error at the start of a process may also end it.
        let has_ended = process.wait(deadline).is_some();
        let is_reached = is_recorded || (kills && has_ended);
        assert!(is_reached || !has_ended, "ended without a fault:\n{}", log());
        assert!(has_ended || (is_done && !(is_recorded && kills)), "neither done nor ended:\n{}", log());
        self.backends[0].process = (!has_ended).then_some(process);
        is_reached
    }

    fn faults(&self) -> Faults {
        Faults::new(self.notes(self.first_node()))
    }

    fn first_node(&self) -> &Node {
        &self.cluster.nodes()[0]
    }

    /// The command of a node's backend.
    pub(super) fn backend_command(&self, number: usize) -> Command {
        let node = &self.cluster.nodes()[number];
        let state = self.state(node);
        let mut command = self.backend_kind.follow(&self.socket(), &node.name, &state, &self.arguments);
        self.backend_kind.record_kernel_changes(&mut command, &self.notes(node));
        command
    }
}
