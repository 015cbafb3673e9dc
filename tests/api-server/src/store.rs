//! Objects in all their versions, as etcd keeps them until it compacts.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    resource::{Collection, Resource},
    selector::Selector,
};

/// Identifies an object: its kind, namespace and name. They are listed in this order.
pub(crate) type ObjectKey = (Resource, String, String);

/// All objects. A clone is a backup.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// The version of the last write.
    version: u64,
    /// Older versions are gone.
    compacted: u64,
    objects: BTreeMap<ObjectKey, Vec<Revision>>,
    /// The object that each version has written.
    history: BTreeMap<u64, ObjectKey>,
    /// All writes, also those that were compacted or taken back. No object gets a version twice.
    written: BTreeSet<(u64, ObjectKey)>,
}

#[derive(Clone, Debug)]
struct Revision {
    version: u64,
    /// `None`: it was deleted.
    object: Option<Arc<StoredObject>>,
}

/// An object in one version.
#[derive(Debug)]
pub(crate) struct StoredObject {
    /// Without `kind` and `apiVersion`, which an object of a list does not have.
    text: String,
    /// What selectors match: its metadata, and the fields of its spec that are text.
    selectable: Value,
}

/// What a watch sends about a version.
#[derive(Debug)]
pub(crate) struct StoredEvent {
    pub(crate) event: &'static str,
    pub(crate) object: Arc<StoredObject>,
}

/// Objects with their keys, and whether there are more.
pub(crate) type Page = (Vec<(ObjectKey, Arc<StoredObject>)>, bool);

/// The requested version was compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted;

// === impl StoredObject ===

impl StoredObject {
    fn new(mut object: Value) -> Arc<Self> {
        let text = object.to_string();
        let mut spec = object["spec"].take();
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|_, value| value.is_string());
        }
        Arc::new(Self { text, selectable: json!({"metadata": object["metadata"].take(), "spec": spec}) })
    }

    /// As in a list.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// On its own, and as in a watch.
    pub(crate) fn typed_text(&self, resource: Resource) -> String {
        format!(r#"{{"kind":"{}","apiVersion":"{}",{}"#, resource.kind(), resource.api_version(), &self.text[1..])
    }

    /// As `PartialObjectMetadata` in a list.
    pub(crate) fn metadata_text(&self) -> String {
        let metadata = &self.selectable["metadata"];
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}).to_string()
    }
}

// === impl Store ===

impl Default for Store {
    fn default() -> Self {
        Self { version: 1, compacted: 0, objects: BTreeMap::new(), history: BTreeMap::new(), written: BTreeSet::new() }
    }
}

impl Store {
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Creates or replaces an object, whose namespace and name are in its metadata.
    pub(crate) fn put(&mut self, resource: Resource, mut object: Value) -> u64 {
        let fields = object.as_object_mut().expect("an object");
        fields.remove("kind");
        fields.remove("apiVersion");
        let metadata = fields["metadata"].as_object_mut().expect("an object with metadata");
        let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (resource, text("namespace"), text("name"));
        assert!(!key.2.is_empty(), "an object needs metadata.name");
        self.advance(&key);
        metadata.insert("resourceVersion".to_owned(), self.version.to_string().into());
        metadata.entry("uid").or_insert_with(|| format!("00000000-0000-4000-8000-{:012x}", self.version).into());
        metadata.entry("creationTimestamp").or_insert_with(|| "2026-01-01T00:00:00Z".into());
        self.write(key, Some(StoredObject::new(object)))
    }

    /// Deletes an object. `None` if there is none.
    pub(crate) fn delete(&mut self, key: &ObjectKey) -> Option<u64> {
        self.get(key)?;
        self.advance(key);
        Some(self.write(key.clone(), None))
    }

    /// After a restore, an object may get the version of a write that was taken back. No client can notice that.
    fn advance(&mut self, key: &ObjectKey) {
        self.version += 1;
        while !self.written.insert((self.version, key.clone())) {
            self.version += 1;
        }
    }

    /// Remembers the versions of another history.
    pub(crate) fn remember(&mut self, other: &mut Self) {
        self.written.append(&mut other.written);
    }

    fn write(&mut self, key: ObjectKey, object: Option<Arc<StoredObject>>) -> u64 {
        let version = self.version;
        self.objects.entry(key.clone()).or_default().push(Revision { version, object });
        self.history.insert(version, key);
        version
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<StoredObject>> {
        self.at(key, self.version)
    }

    /// An object as it was at a version.
    fn at(&self, key: &ObjectKey, version: u64) -> Option<Arc<StoredObject>> {
        let revisions = self.objects.get(key)?;
        let newer = revisions.partition_point(|revision| revision.version <= version);
        revisions[..newer].last()?.object.clone()
    }

    /// Forgets all versions before the current one. The current one cannot be watched from, either.
    pub(crate) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
        self.objects.retain(|_, revisions| {
            revisions.drain(..revisions.len() - 1);
            revisions[0].object.is_some()
        });
    }

    /// The selected objects as they were at a version, after a key and up to a limit, and whether there are more.
    pub(crate) fn page(
        &self,
        Collection { resource, namespace }: Collection<'_>,
        selector: &Selector,
        version: u64,
        after: Option<&ObjectKey>,
        limit: usize,
    ) -> Result<Page, Compacted> {
        if version < self.compacted {
            return Err(Compacted);
        }
        let first = (resource, String::new(), String::new());
        let range = self.objects.range((Excluded(after.unwrap_or(&first)), Unbounded));
        let mut selected = range
            .map(|(key, _)| key)
            .take_while(|key| key.0 == resource)
            .filter(|key| namespace.is_none_or(|namespace| namespace == key.1))
            .filter_map(|key| Some((key.clone(), self.at(key, version)?)))
            .filter(|(_, object)| selector.matches(&object.selectable));
        let page = selected.by_ref().take(limit).collect();
        Ok((page, selected.next().is_some()))
    }

    /// The events of the selected objects after a version, which may be in the future, up to another one.
    pub(crate) fn events_between(
        &self,
        Collection { resource, namespace }: Collection<'_>,
        selector: &Selector,
        version: u64,
        last: u64,
    ) -> Result<Vec<StoredEvent>, Compacted> {
        if version < self.compacted {
            return Err(Compacted);
        }
        let written = self.history.range((Excluded(version), Unbounded)).take_while(|(version, _)| **version <= last);
        let written =
            written.filter(|(_, key)| key.0 == resource && namespace.is_none_or(|namespace| namespace == key.1));
        Ok(written.filter_map(|(version, key)| self.event(*version, key, selector)).collect())
    }

    /// What the write of a version means for those who see the selected objects only.
    fn event(&self, version: u64, key: &ObjectKey, selector: &Selector) -> Option<StoredEvent> {
        let selected = |object: &Arc<StoredObject>| selector.matches(&object.selectable);
        let before = self.at(key, version - 1).filter(selected);
        let after = self.at(key, version).filter(selected);
        let (event, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => {
                // The last state, with the version of the deletion.
                let mut object: Value = serde_json::from_str(&before.text).expect("a stored object");
                object["metadata"]["resourceVersion"] = version.to_string().into();
                ("DELETED", StoredObject::new(object))
            }
        };
        Some(StoredEvent { event, object })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICES: Collection<'_> = Collection { resource: Resource::Service, namespace: None };

    fn service(name: &str, label: Option<&str>) -> Value {
        json!({"metadata": {"namespace": "shop", "name": name, "labels": {"proxy": label}}})
    }

    fn events(store: &Store, selector: &str, version: u64) -> Vec<&'static str> {
        let events = store.events_between(SERVICES, &Selector::new(selector, ""), version, u64::MAX).unwrap();
        events.into_iter().map(|event| event.event).collect()
    }

    #[test]
    fn objects_that_leave_a_selection_are_deleted_for_its_watch() {
        let mut store = Store::default();
        store.put(Resource::Service, service("web", None));
        store.put(Resource::Service, service("web", Some("x")));
        store.put(Resource::Service, service("web", None));
        store.put(Resource::Service, service("web", None));
        store.delete(&(Resource::Service, "shop".to_owned(), "web".to_owned()));
        assert_eq!(events(&store, "!proxy", 1), ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]);
        assert_eq!(events(&store, "proxy", 1), ["ADDED", "DELETED"]);
        assert_eq!(events(&store, "", 4), ["MODIFIED", "DELETED"]);
        assert_eq!(events(&store, "", 90), [""; 0]);
    }

    #[test]
    fn pages_of_one_list_are_of_one_version() {
        let mut store = Store::default();
        for name in ["a", "b", "c"] {
            store.put(Resource::Service, service(name, None));
        }
        let version = store.version();
        let all = Selector::default();
        let (first, more) = store.page(SERVICES, &all, version, None, 2).unwrap();
        assert_eq!((first.len(), more), (2, true));
        store.put(Resource::Service, service("b2", None));
        store.delete(&(Resource::Service, "shop".to_owned(), "c".to_owned()));
        let (second, more) = store.page(SERVICES, &all, version, Some(&first[1].0), 2).unwrap();
        assert_eq!((second.len(), second[0].0.2.as_str(), more), (1, "c", false));
        store.compact();
        assert_eq!(store.page(SERVICES, &all, version, None, 2).unwrap_err(), Compacted);
        assert_eq!(store.page(SERVICES, &all, store.version(), None, 9).unwrap().0.len(), 3);
    }
}
