//! The sets of a network namespace, over one socket.

use std::{thread, time::Duration};

use nix::libc;

use super::{
    DestroyOutcome, Ipset, IpsetEntry, NewIpset,
    abi::{self, cmd},
    codec,
};
use crate::{
    Errno, Error, RejectedRequest, Result, Socket,
    exchange::{SEQ, collect, exchange, submit},
};

/// The number of attempts to destroy a set of which the kernel still counts a user: 2 s in all.
const DESTROY_ATTEMPTS: usize = 40;
/// The delay between two of these attempts.
const DESTROY_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The sets of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct IpsetHandle {
    socket: Socket,
    /// The request; kept to reuse the allocation.
    buf: Vec<u8>,
}

impl IpsetHandle {
    /// Opens a socket of its own.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open()?, buf: Vec::new() })
    }

    /// All sets, without their entries. A kernel without ipset has none.
    pub fn sets(&mut self) -> Result<Vec<Ipset>> {
        self.headers(codec::read_set)
    }

    /// The sets with the numbers of their entries. A kernel without ipset has none.
    pub fn sizes(&mut self) -> Result<Vec<(Ipset, u32)>> {
        self.headers(|payload| codec::read_set(payload).zip(codec::read_size(payload)))
    }

    fn headers<T>(&mut self, read: impl FnMut(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        self.buf.clear();
        codec::write_list_headers(&mut self.buf);
        match collect(&mut self.socket, &self.buf, "list sets", "a set", read) {
            // The reply of nfnetlink if it lacks the subsystem.
            Err(Error::Request { errno: Errno(libc::EINVAL), .. }) => Ok(Vec::new()),
            list => list,
        }
    }

    /// The entries of a set.
    ///
    /// # Errors
    /// When the kernel rejects the request; [`Error::is_not_found`] if the set does not exist.
    pub fn entries(&mut self, name: &str) -> Result<Vec<IpsetEntry>> {
        self.buf.clear();
        codec::write_list(&mut self.buf, name);
        let request = format!("list set {name}");
        let parts = collect(&mut self.socket, &self.buf, &request, "an entry of a set", codec::read_entries)?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Whether a rule finds the entry in the set: the entry itself, or a range that contains it.
    ///
    /// # Errors
    /// When the kernel rejects the request; [`Error::is_not_found`] if the set does not exist.
    pub fn contains(&mut self, name: &str, entry: &IpsetEntry) -> Result<bool> {
        match self.request(&format!("test set {name}"), |buf| codec::write_test(buf, name, entry)) {
            Err(Error::Request { errno: Errno(abi::EXIST | abi::TYPE_SPECIFIC..), .. }) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Creates a set. The kernel loads the module of its type.
    ///
    /// # Errors
    /// When the kernel rejects the set, for example because the name exists.
    pub fn create(&mut self, set: &NewIpset<'_>) -> Result<()> {
        self.request(&format!("create set {}", set.name), |buf| codec::write_create(buf, set))
    }

    /// Adds entries and updates existing entries; returns the entries that the kernel rejected.
    ///
    /// # Errors
    /// When it is unknown which entries the kernel added, or the set does not exist.
    pub fn add(&mut self, name: &str, entries: &[IpsetEntry]) -> Result<Vec<RejectedRequest>> {
        self.change(cmd::ADD, name, entries)
    }

    /// Deletes entries, as [`Self::add`]; missing entries are not an error.
    pub fn delete(&mut self, name: &str, entries: &[IpsetEntry]) -> Result<Vec<RejectedRequest>> {
        self.change(cmd::DELETE, name, entries)
    }

    /// Sends many entries per message. The kernel stops at an entry that it rejects; the next message starts after it.
    fn change(&mut self, command: u16, name: &str, entries: &[IpsetEntry]) -> Result<Vec<RejectedRequest>> {
        let mut rejected = Vec::new();
        let mut done = 0;
        while done < entries.len() {
            self.buf.clear();
            let count = codec::write_entries(&mut self.buf, command, name, &entries[done..]);
            let mut rejection = None;
            submit(&mut self.socket, &self.buf, SEQ, |message, errno| {
                let line = codec::read_rejected_line(message.payload).unwrap_or(0);
                rejection = Some((line as usize, errno));
            })?;

            match rejection {
                None => done += count,
                Some((line, errno)) if (1..=count).contains(&line) && errno.0 != libc::ENOENT => {
                    rejected.push(RejectedRequest { index: done + line - 1, errno });
                    done += line;
                }
                Some((_, errno)) => {
                    let request = format!("change set {name}");
                    return Err(Error::Request { request, errno, message: None });
                }
            }
        }
        Ok(rejected)
    }

    /// Destroys a set with its entries, unless a rule or another set refers to it.
    pub fn destroy(&mut self, name: &str) -> Result<DestroyOutcome> {
        match self.request(&format!("destroy set {name}"), |buf| codec::write_destroy(buf, name)) {
            Err(Error::Request { errno: Errno(abi::BUSY), .. }) => Ok(DestroyOutcome::InUse),
            Err(error) if error.is_not_found() => Ok(DestroyOutcome::Destroyed),
            result => result.map(|()| DestroyOutcome::Destroyed),
        }
    }

    /// As [`Self::destroy`], after rules that refer to the set were deleted: nf_tables frees them, and their
    /// references, up to two seconds later.
    ///
    /// # Errors
    /// When the kernel rejects the request for another reason.
    pub fn destroy_released(&mut self, name: &str) -> Result<DestroyOutcome> {
        for _ in 1..DESTROY_ATTEMPTS {
            if self.destroy(name)? == DestroyOutcome::Destroyed {
                return Ok(DestroyOutcome::Destroyed);
            }
            thread::sleep(DESTROY_RETRY_DELAY);
        }
        self.destroy(name)
    }

    fn request(&mut self, request: &str, write: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.buf.clear();
        write(&mut self.buf);
        exchange(&mut self.socket, &self.buf, request, |_| Ok(()))
    }
}

#[cfg(test)]
mod tests;
