//! Generic netlink: the running kernel assigns a number to each family of messages, which is looked up by name.

use crate::{
    Result, Socket,
    attr::Put,
    exchange::{SEQ, collect},
    message::{self, flags},
};

/// `GENL_ID_CTRL`: the family that lists the families.
const CONTROL: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`.
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// The version of the control family and of IPVS.
const VERSION: u8 = 1;

/// The number of a family; `None` if the kernel has no such family. The kernel loads the family's module if there is
/// one.
pub(crate) fn family(socket: &mut Socket, name: &str) -> Result<Option<u16>> {
    let mut request = Vec::new();
    write_get(&mut request, name);
    match collect(socket, &request, "look up a generic netlink family", "a family without number", read_id) {
        Err(error) if error.is_not_found() => Ok(None),
        ids => ids.map(|mut ids| ids.pop()),
    }
}

/// Appends a request; `body` appends its attributes.
pub(crate) fn put(buf: &mut Vec<u8>, family: u16, command: u8, flags: u16, seq: u32, body: impl FnOnce(&mut Vec<u8>)) {
    message::put(buf, family, flags::REQUEST | flags, seq, [command, VERSION, 0, 0], body);
}

fn write_get(buf: &mut Vec<u8>, name: &str) {
    put(buf, CONTROL, GET_FAMILY, flags::ACK, SEQ, |buf| buf.put_str(FAMILY_NAME, name));
}

pub(crate) fn read_id(payload: &[u8]) -> Option<u16> {
    message::attributes(payload)?.find(FAMILY_ID)?.ne_u16()
}

#[cfg(test)]
mod tests {
    use netlink_sys::protocols::NETLINK_GENERIC;

    use super::*;
    use crate::{message::messages, tests::captured};

    const CAPTURED: &str = include_str!("ipvs/captured/ipvsadm-1.31.txt");

    #[test]
    fn the_request_for_a_family_equals_that_of_ipvsadm() {
        let theirs = captured::datagrams(CAPTURED, "ipvsadm -Ln", "> ").remove(0);
        let mut ours = Vec::new();
        write_get(&mut ours, "IPVS");
        assert_eq!((&ours[..8], &ours[16..]), (&theirs[..8], &theirs[16..]));
        let reply = captured::read(CAPTURED, "ipvsadm -Ln").remove(0);
        assert_eq!(read_id(messages(&reply).next().unwrap().payload), Some(0x1c));
    }

    #[test]
    fn a_family_is_found_by_name() {
        let mut socket = Socket::open_for(NETLINK_GENERIC).unwrap();
        assert_eq!(family(&mut socket, "nlctrl"), Ok(Some(CONTROL)));
        assert_eq!(family(&mut socket, "fairlead"), Ok(None));
    }
}
