//! Network interfaces: deleted by name.

use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc;

use crate::{
    Errno, Error, Result, Socket,
    attr::Put,
    exchange::{SEQ, exchange},
    message::{self, flags},
};

/// `RTM_DELLINK`.
const DELETE: u16 = 17;
/// Length of `struct ifinfomsg`; all zero, it names no interface.
const IFINFOMSG: usize = 16;
/// `IFLA_IFNAME`.
const NAME: u16 = 3;

/// Deletes an interface, and its addresses with it. None of that name is no error.
///
/// # Errors
/// When the kernel refuses: not permitted, or an interface that is not made by software.
pub fn delete(name: &str) -> Result<()> {
    let mut request = Vec::new();
    write_delete(&mut request, name);
    match exchange(
        &mut Socket::open_for(NETLINK_ROUTE)?,
        &request,
        &format!("delete link {name}"),
        |_| Ok(()),
    ) {
        Err(Error::Request { errno: Errno(libc::ENODEV), .. }) => Ok(()),
        result => result,
    }
}

fn write_delete(buf: &mut Vec<u8>, name: &str) {
    let at = message::start(buf, DELETE, flags::REQUEST | flags::ACK, SEQ);
    buf.extend_from_slice(&[0; IFINFOMSG]);
    buf.put_str(NAME, name);
    message::finish(buf, at);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{addresses::by_interface, captured, testing::in_netns};

    const CAPTURED: &str = include_str!("link/captured/iproute2-6.1.0.txt");

    /// It looks the name up first, in a message of the same form, and deletes by number.
    #[test]
    fn an_interface_is_named_and_deleted_as_ip_does() {
        let theirs = captured::datagrams(CAPTURED, "ip link delete kube-ipvs0", "> ");
        let [.., get, delete] = &theirs[..] else { panic!("{theirs:?}") };
        let mut ours = Vec::new();
        write_delete(&mut ours, "kube-ipvs0");
        assert_eq!(ours[4..8], delete[4..8], "type and flags");
        // Behind IFLA_EXT_MASK.
        assert_eq!(ours[32..], get[40..]);
    }

    #[test]
    fn an_interface_is_deleted_and_another_is_not() {
        in_netns(|| {
            for name in ["one", "two"] {
                let add = ["link", "add", name, "type", "veth", "peer", "name", &format!("{name}-peer")];
                assert!(Command::new("ip").args(add).status().unwrap().success());
            }
            assert_eq!(delete("one"), Ok(()));
            let left: Vec<_> = by_interface().unwrap().into_keys().collect();
            assert_eq!(left, ["lo", "two", "two-peer"]);
            assert_eq!(delete("one"), Ok(()), "gone already");
            assert!(delete("lo").is_err_and(|error| error.is_not_supported()));
        });
    }
}
