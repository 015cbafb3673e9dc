//! The sets of a network namespace, over one socket.

use nix::libc;

use super::{Destroyed, Entry, Set, abi, codec};
use crate::{Errno, Error, Result, Socket, exchange::exchange};

/// The sets of one network namespace: that of the thread that opened it. Every call blocks.
#[derive(Debug)]
pub struct Handle {
    socket: Socket,
    /// The request, to be sent; kept for its room.
    buf: Vec<u8>,
}

impl Handle {
    /// Opens a socket of its own.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::open()?, buf: Vec::new() })
    }

    /// All sets, without their entries. A kernel without ipset has none.
    pub fn sets(&mut self) -> Result<Vec<Set>> {
        let mut list = Vec::new();
        self.buf.clear();
        codec::write_list_headers(&mut self.buf);
        let asked = exchange(&mut self.socket, &self.buf, "list sets", |message| {
            list.push(codec::read_set(message.payload).ok_or(Error::Malformed("a set"))?);
            Ok(())
        });
        match asked {
            // What nfnetlink says to a subsystem that it does not have.
            Err(Error::Request { errno: Errno(libc::EINVAL), .. }) => Ok(Vec::new()),
            asked => asked.map(|()| list),
        }
    }

    /// The entries of a set.
    ///
    /// # Errors
    /// When the kernel refuses; [`Error::is_not_found`] when there is no such set.
    pub fn entries(&mut self, name: &str) -> Result<Vec<Entry>> {
        let mut list = Vec::new();
        self.buf.clear();
        codec::write_list(&mut self.buf, name);
        exchange(&mut self.socket, &self.buf, &format!("list set {name}"), |message| {
            list.extend(codec::read_entries(message.payload).ok_or(Error::Malformed("an entry of a set"))?);
            Ok(())
        })?;
        Ok(list)
    }

    /// Destroys a set with its entries, unless something refers to it.
    pub fn destroy(&mut self, name: &str) -> Result<Destroyed> {
        self.buf.clear();
        codec::write_destroy(&mut self.buf, name);
        match exchange(&mut self.socket, &self.buf, &format!("destroy set {name}"), |_| Ok(())) {
            Err(Error::Request { errno: Errno(abi::BUSY), .. }) => Ok(Destroyed::InUse),
            Err(error) if error.is_not_found() => Ok(Destroyed::Done),
            result => result.map(|()| Destroyed::Done),
        }
    }
}

#[cfg(test)]
mod tests;
