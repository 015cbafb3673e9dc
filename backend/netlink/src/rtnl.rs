//! Links, their addresses, and routes of the calling thread's network namespace, over the crate `rtnetlink`.
//!
//! A VIP on a dummy device is an address of the node, so that the kernel delivers packets for it to IPVS; nothing is
//! sent through the device.
//!
//! Each call blocks. It opens a socket and a runtime on a thread of its own, so that async code may call it too.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    panic::resume_unwind,
    thread,
};

use futures::TryStreamExt as _;
use nix::libc;
use rtnetlink::{
    Handle, LinkDelRequest, LinkDummy, LinkUnspec, RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo},
        link::{LinkAttribute, LinkFlags, LinkMessage},
        route::{RouteAddress, RouteAttribute},
    },
};
use tokio::runtime;

use crate::{Errno, Error, RejectedRequest, Result};

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number of it.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is up (`IFF_UP`); IPv6 addresses of a device that is down are not local.
    pub is_up: bool,
}

/// The route that the kernel chooses for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The name of the outgoing device; `lo` for an address of this node.
    pub link: String,
    /// The source address of packets that this node sends there.
    pub source: Option<IpAddr>,
}

/// `ip link show NAME`.
pub fn link(name: &str) -> Result<Option<Link>> {
    run(async |handle| {
        let found = handle.link().get().match_name(name).execute().try_next().await;
        match found.map_err(failed(format!("get link {name}"))) {
            Err(error) if error.errno() == Some(Errno(libc::ENODEV)) => Ok(None),
            found => Ok(found?.map(read_link)),
        }
    })
}

/// `ip link add NAME up type dummy`.
///
/// # Errors
/// When the kernel rejects it, also if a link has that name.
pub fn add_dummy_link(name: &str) -> Result<()> {
    run(async |handle| {
        let added = handle.link().add(LinkDummy::new(name).up().build()).execute().await;
        added.map_err(failed(format!("add dummy link {name}")))
    })
}

/// `ip link delete NAME`, which deletes its addresses too. No link of that name is no error.
///
/// # Errors
/// When the kernel rejects it: not permitted, or not a virtual device.
pub fn delete_link(name: &str) -> Result<()> {
    run(async |handle| {
        let message = LinkUnspec::new_with_name(name).build();
        let deleted = LinkDelRequest::new_with_message(handle, message).execute().await;
        match deleted.map_err(failed(format!("delete link {name}"))) {
            Err(error) if error.errno() == Some(Errno(libc::ENODEV)) => Ok(()),
            deleted => deleted,
        }
    })
}

/// `ip link set NAME up`.
pub fn set_link_up(link: &Link) -> Result<()> {
    run(async |handle| {
        let set = handle.link().set(LinkUnspec::new_with_index(link.index).up().build()).execute().await;
        set.map_err(failed(format!("set link {} up", link.name)))
    })
}

/// The addresses of a link, without IPv6 link-local addresses, which the kernel adds itself.
pub fn link_addresses(link: &Link) -> Result<Vec<IpAddr>> {
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let all = run(list_addresses)?.into_iter();
    let own = all.filter(|(index, address)| *index == link.index && !is_link_local(address));
    Ok(own.map(|(_, address)| address).collect())
}

/// The addresses of all links, including loopback and link-local addresses.
pub fn addresses() -> Result<HashSet<IpAddr>> {
    Ok(run(list_addresses)?.into_iter().map(|(_, address)| address).collect())
}

/// The addresses of all links except links of these names, including loopback and link-local addresses.
pub fn addresses_except(links: &[&str]) -> Result<HashSet<IpAddr>> {
    let others = addresses_by_link()?.into_iter().filter(|(name, _)| !links.contains(&name.as_str()));
    Ok(others.flat_map(|(_, addresses)| addresses).collect())
}

/// The addresses of each link, by its name. Links without an address are included.
pub fn addresses_by_link() -> Result<BTreeMap<String, HashSet<IpAddr>>> {
    run(async |handle| {
        let links: Vec<_> = handle.link().get().execute().try_collect().await.map_err(failed("list links"))?;

        let mut by_index = HashMap::<_, HashSet<_>>::new();
        for (index, address) in list_addresses(handle).await? {
            by_index.entry(index).or_default().insert(address);
        }

        let links = links.into_iter().map(read_link);
        Ok(links.map(|link| (link.name, by_index.remove(&link.index).unwrap_or_default())).collect())
    })
}

/// `ip address add ADDRESS dev NAME`, in their order. An address that the link has is no error. IPv4 addresses have
/// scope host and IPv6 addresses are deprecated, so that the kernel selects none of them as the source of a connection
/// to another address.
///
/// # Errors
/// When the outcome is unknown; an address that the kernel rejected is returned.
pub fn add_addresses(link: &Link, addresses: &[IpAddr]) -> Result<Vec<RejectedRequest>> {
    run(async |handle| {
        let mut rejected = Vec::new();
        for (index, &address) in addresses.iter().enumerate() {
            let mut request = handle.address().add(link.index, address, 0);
            *request.message_mut() = vip_message(link.index, address);
            let added = request.execute().await.map_err(failed("add an address"));
            rejected.extend(rejection(added, index, libc::EEXIST)?);
        }
        Ok(rejected)
    })
}

/// `ip address delete ADDRESS dev NAME`, in their order. An address that the link does not have is no error.
///
/// # Errors
/// As [`add_addresses`].
pub fn delete_addresses(link: &Link, addresses: &[IpAddr]) -> Result<Vec<RejectedRequest>> {
    run(async |handle| {
        let mut rejected = Vec::new();
        for (index, &address) in addresses.iter().enumerate() {
            let request = handle.address().del(vip_message(link.index, address));
            let deleted = request.execute().await.map_err(failed("delete an address"));
            rejected.extend(rejection(deleted, index, libc::EADDRNOTAVAIL)?);
        }
        Ok(rejected)
    })
}

/// `ip route get ADDRESS`: the kernel evaluates its rules and tables. `None` when it has no route.
pub fn route_to(address: IpAddr) -> Result<Option<Route>> {
    run(async |handle| {
        let prefix_length = if address.is_ipv4() { 32 } else { 128 };
        let builder = RouteMessageBuilder::<IpAddr>::new().destination_prefix(address, prefix_length);
        let query = builder.map_err(|_| Error::Malformed("a route's prefix"))?.build();
        let found = handle.route().get(query).execute().try_next().await;
        let route = match found.map_err(failed(format!("get the route to {address}"))) {
            // ENETUNREACH, or the error of a route of type unreachable, prohibit or blackhole.
            Err(Error::Request { .. }) | Ok(None) => return Ok(None),
            Err(error) => return Err(error),
            Ok(Some(route)) => route,
        };

        let mut output = None;
        let mut source = None;
        for attribute in route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => output = Some(index),
                RouteAttribute::PrefSource(RouteAddress::Inet(address)) => source = Some(address.into()),
                RouteAttribute::PrefSource(RouteAddress::Inet6(address)) => source = Some(address.into()),
                _ => {}
            }
        }
        let Some(index) = output else { return Ok(None) };

        let link = handle.link().get().match_index(index).execute().try_next().await;
        let link = link.map_err(failed(format!("get link {index}")))?;
        Ok(link.map(|link| Route { link: read_link(link).name, source }))
    })
}

/// Runs requests to the end, on a thread that inherits the calling thread's network namespace.
fn run<T: Send>(work: impl AsyncFnOnce(Handle) -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(|| run_here(work)).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

fn run_here<T>(work: impl AsyncFnOnce(Handle) -> Result<T>) -> Result<T> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build().map_err(socket_failed)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(socket_failed)?;
        let connection = tokio::spawn(connection);
        // The clone keeps the connection open until its state is read.
        let result = work(handle.clone()).await?;

        // rtnetlink does not distinguish the end of the connection from the end of a reply.
        if connection.is_finished() { Err(Error::Malformed("the connection ended early")) } else { Ok(result) }
    })
}

async fn list_addresses(handle: Handle) -> Result<Vec<(u32, IpAddr)>> {
    let messages: Vec<_> = handle.address().get().execute().try_collect().await.map_err(failed("list addresses"))?;
    Ok(messages.into_iter().filter_map(|message| Some((message.header.index, read_address(&message)?))).collect())
}

/// `IFA_LOCAL` where the kernel sets it: on a point-to-point link `IFA_ADDRESS` is the peer's.
pub(crate) fn read_address(message: &AddressMessage) -> Option<IpAddr> {
    let mut local = None;
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            _ => {}
        }
    }
    local.or(address)
}

pub(crate) fn read_link(message: LinkMessage) -> Link {
    let is_up = message.header.flags.contains(LinkFlags::Up);
    let name = message.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    });
    Link { index: message.header.index, name: name.unwrap_or_default(), is_up }
}

/// The address as [`add_addresses`] describes it.
fn vip_message(index: u32, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];

    match address {
        IpAddr::V4(_) => {
            message.header.family = AddressFamily::Inet;
            message.header.prefix_len = 32;
            message.header.scope = AddressScope::Host;
        }
        IpAddr::V6(_) => {
            message.header.family = AddressFamily::Inet6;
            message.header.prefix_len = 128;
            let flags = AddressFlags::Nodad | AddressFlags::Noprefixroute;
            // Deprecated from the beginning, but valid forever.
            let mut lifetime = CacheInfo::default();
            lifetime.ifa_preferred = 0;
            lifetime.ifa_valid = u32::MAX;
            message.attributes.extend([AddressAttribute::Flags(flags), AddressAttribute::CacheInfo(lifetime)]);
        }
    }
    message
}

/// The kernel's rejection of the request at this index; `tolerated` is the errno that is no rejection.
fn rejection(result: Result<()>, index: usize, tolerated: i32) -> Result<Option<RejectedRequest>> {
    match result {
        Err(Error::Request { errno: Errno(errno), .. }) if errno == tolerated => Ok(None),
        Err(Error::Request { errno, .. }) => Ok(Some(RejectedRequest { index, errno })),
        result => result.map(|()| None),
    }
}

fn failed(request: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Error {
    move |error| match error {
        rtnetlink::Error::NetlinkError(error) => {
            Error::Request { request: request.into(), errno: Errno(error.raw_code().abs()), message: None }
        }
        source => Error::Rtnetlink { request: request.into(), source },
    }
}

fn socket_failed(error: std::io::Error) -> Error {
    Error::Socket { call: "open a socket for rtnetlink", errno: error.into() }
}
