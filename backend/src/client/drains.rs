//! The streams `Drains`: to the frontend of the session on its connection, to others on their own.

use std::sync::Arc;

use anyhow::{Result, bail};
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use proto::v1::DrainsRequest;
use runtime::lock;
use tokio::time::{Duration, Instant};

use super::{Connection, FrontendAddress, Grpc, OPEN_TIMEOUT, OwnConnection, connect, queries::client, within};
use crate::drained::{DrainStreams, LevelsStream};

/// The streams of one node.
#[derive(Debug)]
struct NodeDrains {
    grpc: Grpc,
    node: String,
}

impl Grpc {
    /// How far the pods of a node are drained, as frontends know it.
    #[must_use]
    pub fn drains(&self, node: &str) -> Arc<dyn DrainStreams> {
        Arc::new(NodeDrains { grpc: self.clone(), node: node.to_owned() })
    }

    fn own_connection(&self) -> Option<Arc<OwnConnection>> {
        lock(&self.own).upgrade()
    }

    /// Resolves all sources.
    async fn resolve_again(&self) -> Result<()> {
        let began = Instant::now();
        self.resolve_older_than(Duration::ZERO).await;
        match self.addresses().unresolved_since(began) {
            Some(source) => bail!("{source}: cannot be resolved, using the last known addresses"),
            None => Ok(()),
        }
    }

    async fn open_drains(&self, address: &FrontendAddress, node: String) -> Result<LevelsStream> {
        let own = self.own_connection().filter(|own| own.address == *address);
        let connection = match own {
            // The token may have been replaced since.
            Some(own) => Connection { token: self.credentials.token_for(address).await?, ..own.connection.clone() },
            None => connect(address, &self.credentials).await?,
        };

        let request = connection.request(DrainsRequest { node });
        let response = client(&connection).drains(request).await.map_err(|status| connection.error(status))?;
        let levels = response.into_inner();
        Ok(levels.map(move |message| message.map_err(|status| connection.error(status))).boxed())
    }
}

impl DrainStreams for NodeDrains {
    fn own(&self) -> Option<FrontendAddress> {
        self.grpc.own_connection().map(|own| own.address.clone())
    }

    fn addresses(&self) -> Vec<FrontendAddress> {
        self.grpc.addresses().in_order()
    }

    fn last_removed(&self) -> Option<Instant> {
        self.grpc.addresses().last_removed()
    }

    fn resolve(&self) -> BoxFuture<'static, Result<()>> {
        let grpc = self.grpc.clone();
        async move { grpc.resolve_again().await }.boxed()
    }

    fn open(&self, address: &FrontendAddress) -> BoxFuture<'static, Result<LevelsStream>> {
        let grpc = self.grpc.clone();
        let address = address.clone();
        let node = self.node.clone();
        async move { within(OPEN_TIMEOUT, grpc.open_drains(&address, node)).await }.boxed()
    }
}
