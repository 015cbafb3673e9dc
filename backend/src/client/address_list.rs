//! Which frontends are known, which of them to try first, and when to look for others.
//!
//! ```text
//!   places ──look up (due)──▶ candidates of each place ──order──▶ tried in turn
//!                                  │    ▲                            │ worked, failed
//!                                  ▼    │                            ▼
//!                            the file of the last known          health of each
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::PathBuf,
    time::Duration,
};

use anyhow::Result;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::address::{AddressSource, FrontendAddress};

/// What is known is looked up again when it is so old and a session is wanted: there may be more replicas by now.
const REFRESH: Duration = Duration::from_secs(600);

/// What is known.
#[derive(Debug)]
pub(super) struct AddressList {
    places: Vec<Known>,
    failed: HashMap<FrontendAddress, Instant>,
    /// Where the last session was; others come first, if they work.
    last: Option<FrontendAddress>,
    file: Option<PathBuf>,
}

/// What is known of a place.
#[derive(Debug)]
struct Known {
    place: AddressSource,
    candidates: Vec<FrontendAddress>,
    looked_up: Option<Instant>,
}

// === impl AddressList ===

impl AddressList {
    /// Knows what the file says, until something is looked up.
    pub(super) fn new(places: Vec<AddressSource>, file: Option<PathBuf>) -> Self {
        let stored = file.as_ref().map(read).unwrap_or_default();
        let known = |place: AddressSource| {
            let candidates = stored.get(&place.to_string()).cloned().unwrap_or_default();
            Known { place, candidates, looked_up: None }
        };
        let places = places.into_iter().map(known).collect();
        Self { places, failed: HashMap::new(), last: None, file }
    }

    /// The places to look up before the next try, with their numbers: those never looked up, where nothing works, or long ago.
    pub(super) fn due(&self) -> Vec<(usize, AddressSource)> {
        let is_due = |known: &Known| {
            let is_fresh = known.looked_up.is_some_and(|when| when.elapsed() < REFRESH);
            !is_fresh || known.candidates.iter().all(|candidate| self.failed.contains_key(candidate))
        };
        let due = self.places.iter().enumerate().filter(|(_, known)| is_due(known));
        due.map(|(number, known)| (number, known.place.clone())).collect()
    }

    /// What looking up has come to. After an error the last known stay.
    pub(super) fn looked_up(&mut self, number: usize, found: Result<Vec<FrontendAddress>>) {
        let Some(known) = self.places.get_mut(number) else { return };
        match found {
            Ok(mut candidates) => {
                candidates.sort();
                candidates.dedup();
                known.looked_up = Some(Instant::now());
                if known.candidates != candidates {
                    debug!(place = %known.place, ?candidates, "frontends found");
                    known.candidates = candidates;
                    self.write();
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                warn!(place = %known.place, error, last_known = known.candidates.len(), "cannot look for frontends");
            }
        }
    }

    /// All candidates: those that work in any order, then that of the last session, then those that failed, longest ago first.
    pub(super) fn order(&self) -> Vec<FrontendAddress> {
        let mut list: Vec<_> = self.places.iter().flat_map(|known| known.candidates.iter().cloned()).collect();
        list.sort();
        list.dedup();
        fastrand::shuffle(&mut list);
        list.sort_by_key(|candidate| (self.failed.get(candidate).copied(), self.last.as_ref() == Some(candidate)));
        list
    }

    /// A session could be had.
    pub(super) fn worked(&mut self, candidate: &FrontendAddress) {
        self.failed.remove(candidate);
        self.last = Some(candidate.clone());
    }

    /// None could.
    pub(super) fn failed(&mut self, candidate: &FrontendAddress) {
        self.failed.insert(candidate.clone(), Instant::now());
    }

    /// Writes down what was looked up; fixed addresses are given anew at each start.
    fn write(&self) {
        let Some(path) = &self.file else { return };
        let looked_up = self.places.iter().filter(|known| !matches!(known.place, AddressSource::Fixed(_)));
        let lines = looked_up.flat_map(|known| {
            let line = |FrontendAddress { address, name }: &FrontendAddress| {
                format!("{}\t{address}\t{}\n", known.place, name.as_deref().unwrap_or_default())
            };
            known.candidates.iter().map(line)
        });
        let text: String = lines.collect();
        if text.is_empty() {
            return;
        }
        let new = path.with_added_extension("new");
        if let Err(error) = fs::write(&new, text).and_then(|()| fs::rename(&new, path)) {
            warn!(path = %path.display(), %error, "the addresses of frontends are not written down");
        }
    }
}

/// What was known last, by place. Lines that make no sense are left out.
fn read(path: &PathBuf) -> BTreeMap<String, Vec<FrontendAddress>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                warn!(path = %path.display(), %error, "the last known addresses of frontends are not known");
            }
            String::new()
        }
    };
    let mut places: BTreeMap<String, Vec<FrontendAddress>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split('\t');
        if let (Some(place), Some(address), Some(name)) = (words.next(), words.next(), words.next()) {
            let name = Some(name.to_owned()).filter(|name| !name.is_empty());
            places.entry(place.to_owned()).or_default().push(FrontendAddress { address: address.to_owned(), name });
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn candidate(address: &str) -> FrontendAddress {
        FrontendAddress { address: address.to_owned(), name: Some("fairlead".to_owned()) }
    }

    fn named() -> Vec<AddressSource> {
        vec![AddressSource::parse("https://fairlead:7600").unwrap()]
    }

    fn due(directory: &AddressList) -> usize {
        directory.due().len()
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_work_come_first_and_another_than_the_last_one() {
        let [a, b, c] = ["https://10.0.0.1:1", "https://10.0.0.2:1", "https://10.0.0.3:1"].map(candidate);
        let mut directory = AddressList::new(named(), None);
        directory.looked_up(0, Ok(vec![c.clone(), a.clone(), b.clone(), a.clone()]));
        assert_eq!(directory.order().len(), 3);
        directory.worked(&a);
        for _ in 0..20 {
            assert_eq!(directory.order()[2], a);
        }
        directory.failed(&b);
        tokio::time::advance(Duration::from_secs(1)).await;
        directory.failed(&c);
        assert_eq!(directory.order(), [a.clone(), b.clone(), c.clone()]);
        directory.worked(&c);
        assert_eq!(directory.order(), [a, c, b]);
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_many_is_chosen_by_chance() {
        let mut directory = AddressList::new(named(), None);
        directory.looked_up(0, Ok((1..=4).map(|n| candidate(&format!("https://10.0.0.{n}:1"))).collect()));
        let first: std::collections::BTreeSet<_> = (0..200).map(|_| directory.order().remove(0)).collect();
        assert_eq!(first.len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_looked_up_at_first_then_rarely_and_when_nothing_works() {
        let mut directory = AddressList::new(named(), None);
        assert_eq!(due(&directory), 1);
        directory.looked_up(0, Ok(vec![candidate("https://10.0.0.1:1"), candidate("https://10.0.0.2:1")]));
        assert_eq!(due(&directory), 0);
        directory.failed(&candidate("https://10.0.0.1:1"));
        assert_eq!(due(&directory), 0, "the other one may work");
        directory.failed(&candidate("https://10.0.0.2:1"));
        assert_eq!(due(&directory), 1);
        directory.worked(&candidate("https://10.0.0.2:1"));
        assert_eq!(due(&directory), 0);
        tokio::time::advance(REFRESH).await;
        assert_eq!(due(&directory), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_known_outlive_the_process_and_errors() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("frontends");
        let mut directory = AddressList::new(named(), Some(file.clone()));
        assert_eq!(directory.order(), []);
        let found =
            vec![candidate("https://10.0.0.1:1"), FrontendAddress { name: None, ..candidate("https://10.0.0.2:1") }];
        directory.looked_up(0, Ok(found.clone()));

        let mut directory = AddressList::new(named(), Some(file.clone()));
        directory.looked_up(0, (|| bail!("no such name"))());
        let mut order = directory.order();
        order.sort();
        assert_eq!(order, found);
        assert_eq!(due(&directory), 1, "it is tried again");

        // Those of another place are not its.
        let other = vec![AddressSource::parse("https://other:7600").unwrap()];
        assert_eq!(AddressList::new(other, Some(file.clone())).order(), []);
        fs::write(&file, "nonsense\n\n\t\t\n").unwrap();
        assert_eq!(AddressList::new(named(), Some(file)).order(), []);
    }
}
