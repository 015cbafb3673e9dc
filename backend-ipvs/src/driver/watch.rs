//! What is looked at from time to time, for nobody tells: whether destinations that drain have done so, and whether what was programmed is
//! still there.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Result;
use backend::Drift;
use netlink::ipvs::VirtualServerKey;
use tokio::time::Instant;
use tracing::debug;

use super::{Driver, now, programmed::Programmed};
use crate::{
    kernel::{Connections, Kernel, RulesFound, Survey},
    object::Object,
    set::SetId,
};

/// From one look to the next, if looking takes no time.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// It takes at most this share of the time: one part of so many.
const SHARE: u32 = 25;
/// However long it takes.
const LONGEST: Duration = Duration::from_secs(30);

/// How long to wait after a look that took so long.
pub(super) fn pause(took: Duration) -> Duration {
    took.saturating_mul(SHARE).clamp(INTERVAL, LONGEST)
}

impl<K: Kernel> Driver<K> {
    /// Looks once.
    pub(super) async fn watch(&mut self) -> Result<Option<Drift>> {
        let Some(programmed) = &self.programmed else { return Ok(None) };
        let survey = self.kernel.survey().await?;
        let mut what = missing(programmed, &survey);
        if what.is_none() && self.look_at_rules <= Instant::now() {
            let begun = Instant::now();
            let found = self.kernel.check(programmed.rules.clone()).await?;
            self.look_at_rules = Instant::now() + pause(begun.elapsed());
            what = (found == RulesFound::Wrong).then_some("rules");
        }
        if let Some(what) = what {
            return Ok(Some(Drift::Changed { object: what.to_owned(), process: "unknown".to_owned(), pid: 0 }));
        }
        if survey.elsewhere != programmed.elsewhere {
            return Ok(Some(Drift::Possible));
        }
        self.sweep().await?;
        Ok(None)
    }

    async fn sweep(&mut self) -> Result<()> {
        // If this is cancelled, what is there is unknown.
        let Some(mut programmed) = self.programmed.take() else { return Ok(()) };
        let servers = programmed.draining().map(|(server, ..)| server).collect();
        let removed = self.release(&mut programmed, servers).await?;
        if removed > 0 {
            debug!(removed, "connections have ended");
        }
        self.programmed = Some(programmed);
        Ok(())
    }

    /// Removes those destinations of these virtual servers whose connections have ended, or whose time is over. Where the virtual server
    /// goes too, for nobody leads there any more, only established connections count: its address may be needed elsewhere.
    pub(super) async fn release(
        &mut self,
        programmed: &mut Programmed,
        servers: HashSet<VirtualServerKey>,
    ) -> Result<usize> {
        if servers.is_empty() {
            return Ok(0);
        }
        let connections = self.kernel.connections(servers.iter().copied().collect()).await?;
        let now = now();
        let is_idle = |(server, address, until): &(VirtualServerKey, SocketAddr, u32)| {
            let Connections { active, inactive } = connections.get(&(*server, *address)).copied().unwrap_or_default();
            let stays = programmed.wanted(&Object::Server(*server)).is_some();
            *until <= now || (active == 0 && (inactive == 0 || !stays))
        };
        let draining = programmed.draining().filter(|(server, ..)| servers.contains(server));
        let idle: HashSet<_> =
            draining.filter(is_idle).map(|(server, address, _)| Object::Destination(server, address)).collect();
        if idle.is_empty() {
            return Ok(0);
        }
        self.change(programmed, BTreeSet::new(), &idle).await
    }
}

/// What is not as it was programmed.
fn missing(programmed: &Programmed, survey: &Survey) -> Option<&'static str> {
    let mut sets: HashMap<SetId, usize> = SetId::all().map(|set| (set, 0)).collect();
    let (mut addresses, mut servers) = (0, true);
    for object in programmed.observed.keys() {
        match object {
            Object::SetEntry(set, _) => *sets.entry(*set).or_default() += 1,
            Object::Address(_) => addresses += 1,
            Object::Server(server) => servers &= survey.servers.contains(server),
            Object::Destination(..) => {}
        }
    }
    if sets != survey.sets {
        Some("sets")
    } else if !servers {
        Some("virtual servers")
    } else {
        // Others may have put some there that are left alone.
        (survey.addresses < addresses).then_some("addresses")
    }
}
