//! A server in a namespace: one thread that answers on given addresses and ports, over TCP, UDP and SCTP. Its messages
//! are those of `wire`.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::mpsc,
    thread::JoinHandle,
};

use tokio::{runtime, sync::oneshot, task::LocalSet};

use crate::{fork, netns::Netns};

mod sctp;
mod tcp;
mod udp;

/// A running server. Dropping it closes its sockets and all connections, and joins its thread.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

// === impl Server ===

impl Server {
    /// Serves each of `ports` on each of `addresses`, under the name `name`; the sockets are bound when this returns.
    /// They are bound to single addresses, so that the source of an answer is the destination of its request.
    #[track_caller]
    pub fn start(netns: &Netns, name: &str, addresses: &[IpAddr], ports: &[u16]) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (bound, is_bound) = mpsc::channel();
        let name = name.to_owned();
        let (addresses, ports) = (addresses.to_vec(), ports.to_vec());
        let thread = netns.spawn(&name.clone(), move || {
            let runtime = runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
            let tasks = LocalSet::new();
            runtime.block_on(tasks.run_until(async {
                let result = bind(&name, &addresses, &ports);
                let failed = result.is_err();
                // The receiver waits for it.
                let _ = bound.send(result);
                if !failed {
                    // Sent or dropped: both mean the end.
                    let _ = stopped.await;
                }
            }));
        });
        is_bound.recv().expect("the server's thread runs").expect("bind the server's sockets");
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _no_forks = fork::pause();
        drop(self.stop.take());
        if let Some(Err(panicked)) = self.thread.take().map(JoinHandle::join)
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panicked);
        }
    }
}

/// Binds all sockets, and spawns a task for each.
fn bind(name: &str, addresses: &[IpAddr], ports: &[u16]) -> io::Result<()> {
    for address in addresses {
        for port in ports {
            tcp::bind(name, SocketAddr::new(*address, *port))?;
            udp::bind(name, SocketAddr::new(*address, *port))?;
        }
        sctp::bind(name, *address, ports)?;
    }
    Ok(())
}
