//! The sets of a network namespace, over one socket.

use nix::libc;

use super::{DestroyOutcome, Ipset, IpsetEntry, NewIpset, RejectedEntry, abi, codec};
use crate::{
    Errno, Error, Result, Socket,
    exchange::{SEQ, exchange, submit},
};

/// The sets of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct IpsetHandle {
    socket: Socket,
    /// The request; kept to reuse its allocation.
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

    /// How many entries each set has, without reading them. A kernel without ipset has no sets.
    pub fn sizes(&mut self) -> Result<Vec<(Ipset, u32)>> {
        self.headers(|payload| codec::read_set(payload).zip(codec::read_size(payload)))
    }

    fn headers<T>(&mut self, read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        let mut list = Vec::new();
        self.buf.clear();
        codec::write_list_headers(&mut self.buf);
        let asked = exchange(&mut self.socket, &self.buf, "list sets", |message| {
            list.push(read(message.payload).ok_or(Error::Malformed("a set"))?);
            Ok(())
        });
        match asked {
            // The reply of nfnetlink if it lacks the subsystem.
            Err(Error::Request { errno: Errno(libc::EINVAL), .. }) => Ok(Vec::new()),
            asked => asked.map(|()| list),
        }
    }

    /// The entries of a set.
    ///
    /// # Errors
    /// When the kernel refuses; [`Error::is_not_found`] when there is no such set.
    pub fn entries(&mut self, name: &str) -> Result<Vec<IpsetEntry>> {
        let mut list = Vec::new();
        self.buf.clear();
        codec::write_list(&mut self.buf, name);
        exchange(&mut self.socket, &self.buf, &format!("list set {name}"), |message| {
            list.extend(codec::read_entries(message.payload).ok_or(Error::Malformed("an entry of a set"))?);
            Ok(())
        })?;
        Ok(list)
    }

    /// Whether an entry is in a set, or in a range that is: as a rule finds it.
    ///
    /// # Errors
    /// When the kernel refuses; [`Error::is_not_found`] when there is no such set.
    pub fn contains(&mut self, name: &str, entry: &IpsetEntry) -> Result<bool> {
        match self.request(&format!("look into set {name}"), |buf| codec::write_test(buf, name, entry)) {
            Err(Error::Request { errno: Errno(abi::EXIST | abi::TYPE_SPECIFIC..), .. }) => Ok(false),
            asked => asked.map(|()| true),
        }
    }

    /// Makes a set. The kernel loads what it needs for that.
    ///
    /// # Errors
    /// When the kernel refuses, also when there is a set of that name.
    pub fn create(&mut self, set: &NewIpset<'_>) -> Result<()> {
        self.request(&format!("create set {}", set.name), |buf| codec::write_create(buf, set))
    }

    /// Removes all entries of a set.
    pub fn flush(&mut self, name: &str) -> Result<()> {
        self.request(&format!("flush set {name}"), |buf| codec::write_flush(buf, name))
    }

    /// Swaps the content of two sets of the same type.
    pub fn swap(&mut self, one: &str, other: &str) -> Result<()> {
        self.request(&format!("swap sets {one} and {other}"), |buf| codec::write_swap(buf, one, other))
    }

    /// Adds entries and updates existing ones; returns those that the kernel rejected.
    ///
    /// # Errors
    /// When it is not known what came of them, or there is no such set.
    pub fn add(&mut self, name: &str, entries: &[IpsetEntry]) -> Result<Vec<RejectedEntry>> {
        self.change(abi::cmd::ADD, name, entries)
    }

    /// Deletes entries; those that are not there are no errors. As [`Self::add`].
    pub fn delete(&mut self, name: &str, entries: &[IpsetEntry]) -> Result<Vec<RejectedEntry>> {
        self.change(abi::cmd::DELETE, name, entries)
    }

    /// Many entries in a message. The kernel stops at one that it refuses: the next message begins behind it.
    fn change(&mut self, command: u16, name: &str, entries: &[IpsetEntry]) -> Result<Vec<RejectedEntry>> {
        let (mut refused, mut done) = (Vec::new(), 0);
        while done < entries.len() {
            self.buf.clear();
            let count = codec::write_entries(&mut self.buf, command, name, &entries[done..]);
            let mut stopped = None;
            submit(&mut self.socket, &self.buf, SEQ, |message, _, errno| {
                stopped = Some((codec::read_refused_line(message.payload), errno));
            })?;
            match stopped {
                None => done += count,
                Some((Some(line), errno)) if (1..=count).contains(&(line as usize)) && errno.0 != libc::ENOENT => {
                    refused.push(RejectedEntry { index: done + line as usize - 1, errno });
                    done += line as usize;
                }
                Some((_, errno)) => {
                    let request = format!("change set {name}");
                    return Err(Error::Request { request, errno, message: None });
                }
            }
        }
        Ok(refused)
    }

    fn request(&mut self, request: &str, write: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        self.buf.clear();
        write(&mut self.buf);
        exchange(&mut self.socket, &self.buf, request, |_| Ok(()))
    }

    /// Destroys a set with its entries, unless something refers to it.
    pub fn destroy(&mut self, name: &str) -> Result<DestroyOutcome> {
        self.buf.clear();
        codec::write_destroy(&mut self.buf, name);
        match exchange(&mut self.socket, &self.buf, &format!("destroy set {name}"), |_| Ok(())) {
            Err(Error::Request { errno: Errno(abi::BUSY), .. }) => Ok(DestroyOutcome::InUse),
            Err(error) if error.is_not_found() => Ok(DestroyOutcome::Destroyed),
            result => result.map(|()| DestroyOutcome::Destroyed),
        }
    }
}

#[cfg(test)]
mod tests;
