//! Generic netlink: a family of messages has a name, and a number that the running kernel gave it.

use crate::{
    Error, Result, Socket,
    attr::{Put, attrs},
    exchange::{SEQ, exchange},
    message::{self, flags},
};

/// Length of `struct genlmsghdr`.
pub(crate) const HEADER: usize = 4;

/// `GENL_ID_CTRL`: the family that knows the others.
const CONTROL: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Of all families that matter here.
pub(crate) const VERSION: u8 = 1;

/// The number of a family; `None` when the kernel has no such family. It loads the family's module, if there is one.
pub(crate) fn family(socket: &mut Socket, name: &str) -> Result<Option<u16>> {
    let mut request = Vec::new();
    write_get(&mut request, name);
    let mut id = None;
    let asked = exchange(socket, &request, "look up a family of generic netlink", |message| {
        id = Some(read_id(message.payload).ok_or(Error::Malformed("a family without number"))?);
        Ok(())
    });
    match asked {
        Err(error) if error.is_not_found() => Ok(None),
        asked => asked.map(|()| id),
    }
}

/// Appends the headers of a message; [`message::finish`] ends it.
pub(crate) fn start(buf: &mut Vec<u8>, family: u16, command: u8, more_flags: u16) -> usize {
    let at = message::start(buf, family, flags::REQUEST | more_flags, SEQ);
    buf.extend_from_slice(&[command, VERSION, 0, 0]);
    at
}

fn write_get(buf: &mut Vec<u8>, name: &str) {
    let at = start(buf, CONTROL, GET_FAMILY, flags::ACK);
    buf.put_str(FAMILY_NAME, name);
    message::finish(buf, at);
}

fn read_id(payload: &[u8]) -> Option<u16> {
    attrs(payload.get(HEADER..)?).find(FAMILY_ID)?.ne_u16()
}

#[cfg(test)]
mod tests {
    use netlink_sys::protocols::NETLINK_GENERIC;

    use super::*;
    use crate::{captured, message::messages};

    const CAPTURED: &str = include_str!("ipvs/captured/ipvsadm-1.31.txt");

    #[test]
    fn a_family_is_asked_for_as_ipvsadm_does() {
        let theirs = captured::datagrams(CAPTURED, "ipvsadm -Ln", "> ").remove(0);
        let mut ours = Vec::new();
        write_get(&mut ours, "IPVS");
        assert_eq!((&ours[..8], &ours[16..]), (&theirs[..8], &theirs[16..]));
        let answer = captured::read(CAPTURED, "ipvsadm -Ln").remove(0);
        assert_eq!(read_id(messages(&answer).next().unwrap().payload), Some(0x1c));
    }

    #[test]
    fn the_kernel_knows_its_own_family_and_none_of_another_name() {
        let mut socket = Socket::open_for(NETLINK_GENERIC).unwrap();
        assert_eq!(family(&mut socket, "nlctrl"), Ok(Some(CONTROL)));
        assert_eq!(family(&mut socket, "fairlead"), Ok(None));
    }
}
