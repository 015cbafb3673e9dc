//! What the server contains, for tests that compare.

use serde_json::Value;

use super::ApiServer;
use crate::{
    resource::{Collection, Resource},
    selector::Selector,
};

impl ApiServer {
    /// All objects of a kind.
    #[must_use]
    pub fn list(&self, resource: Resource) -> Vec<Value> {
        let store = self.store();
        let collection = Collection { resource, namespace: None };
        let page = store.page(collection, &Selector::default(), store.version(), None, usize::MAX);
        let objects = page.map(|(page, _)| page).unwrap_or_default();
        objects.iter().map(|(_, object)| serde_json::from_str(object.text()).expect("a stored object")).collect()
    }
}
