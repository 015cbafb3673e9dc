//! The kernel's hash of a value, `linux/jhash.h`: Bob Jenkins' lookup3.

/// `JHASH_INITVAL`.
const INITIAL: u32 = 0xdead_beef;
/// The number of bytes that are mixed at once.
const BLOCK: usize = 12;

/// The hash of these bytes.
pub(super) fn jhash(bytes: &[u8], seed: u32) -> u32 {
    let start = INITIAL.wrapping_add(bytes.len() as u32).wrapping_add(seed);
    let mut state = [start; 3];
    let mut rest = bytes;
    while rest.len() > BLOCK {
        let (block, after) = rest.split_at(BLOCK);
        add(&mut state, block);
        mix(&mut state);
        rest = after;
    }
    if !rest.is_empty() {
        add(&mut state, rest);
        last_mix(&mut state);
    }
    state[2]
}

/// Adds up to twelve bytes, as numbers in little-endian order.
fn add(state: &mut [u32; 3], bytes: &[u8]) {
    for (word, bytes) in state.iter_mut().zip(bytes.chunks(4)) {
        let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        *word = word.wrapping_add(number);
    }
}

/// `__jhash_mix`.
fn mix([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: &mut u32, z: &mut u32, bits| {
        *x = x.wrapping_sub(*z) ^ z.rotate_left(bits);
        *z = z.wrapping_add(*y);
    };
    step(a, b, c, 4);
    step(b, c, a, 6);
    step(c, a, b, 8);
    step(a, b, c, 16);
    step(b, c, a, 19);
    step(c, a, b, 4);
}

/// `__jhash_final`.
fn last_mix([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: u32, bits| *x = (*x ^ y).wrapping_sub(y.rotate_left(bits));
    step(c, *b, 14);
    step(a, *c, 11);
    step(b, *a, 25);
    step(c, *b, 16);
    step(a, *c, 4);
    step(b, *a, 14);
    step(c, *b, 24);
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        net::{Ipv4Addr, UdpSocket},
        process::Command,
    };

    use netlink::{
        nft::{NftHandle, TableFamily},
        testing::in_netns,
    };

    use super::*;

    /// The kernel stores the hashes of ten source addresses.
    #[test]
    fn hashes_are_those_of_the_kernel() {
        const SEED: u32 = 0x1234;
        let stored: BTreeSet<u32> = in_netns(|| {
            let run = |command: &str| {
                let mut words = command.split_whitespace();
                assert!(Command::new(words.next().unwrap()).args(words).status().unwrap().success(), "{command}");
            };
            run("ip link set lo up");
            run("nft add table ip t");
            run("nft add set ip t seen { type mark ; flags dynamic ; size 100 ; }");
            run("nft add chain ip t out { type filter hook output priority 0 ; }");
            let value = ["ip saddr"; 4].join(" . ");
            run(&format!("nft add rule ip t out meta mark set jhash {value} mod 65536 seed 0x1234"));
            run("nft add rule ip t out update @seen { meta mark }");
            for n in 1..=10 {
                let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, n), 0)).unwrap();
                socket.send_to(b"?", "127.0.0.1:9").unwrap();
            }
            let mut handle = NftHandle::open().unwrap();
            let table = handle.tables(TableFamily::Ip).unwrap().remove(0);
            let read = |list: &mut BTreeSet<u32>, element: netlink::nft::Element<'_>| {
                list.insert(u32::from_ne_bytes(element.key.try_into().unwrap()));
            };
            handle.elements(&table, "seen", BTreeSet::new, read).unwrap()
        });
        // Of 16 bytes: one block and a rest.
        let hash = |n| (u64::from(jhash(&[127, 0, 0, n].repeat(4), SEED)) * 65_536) >> 32;
        let expected: BTreeSet<u32> = (1..=10).map(|n| hash(n) as u32).collect();
        assert_eq!(stored.intersection(&expected).count(), expected.len(), "{stored:x?} {expected:x?}");
    }
}
