//! Tests of batches and bisecting.

use proto::model::PerFamily;

use super::*;
use crate::testing::mk_key;

/// Accepts transactions without invalid service ports.
struct FakeKernel {
    invalid: BTreeSet<u32>,
    /// Whether a rejection names the service port.
    names: bool,
    batch: usize,
    committed: BTreeSet<u32>,
    transactions: usize,
    base_is_valid: bool,
}

impl FakeKernel {
    fn new(invalid: impl IntoIterator<Item = u32>, names: bool, batch: usize) -> Self {
        let (invalid, committed) = (invalid.into_iter().collect(), BTreeSet::new());
        Self { invalid, names, batch, committed, transactions: 0, base_is_valid: true }
    }

    fn commit(&mut self, part: &[u32]) -> Answer {
        self.transactions += 1;
        let reason = || Some("invalid".to_owned());
        if !self.base_is_valid {
            return Err(Rejection { unnamed: reason(), ..Rejection::default() });
        }
        match part.iter().find(|index| self.invalid.contains(index)) {
            None => self.committed.extend(part),
            Some(index) if self.names => {
                return Err(Rejection { named: vec![(*index, "invalid".to_owned())], unnamed: None });
            }
            Some(_) => return Err(Rejection { unnamed: reason(), ..Rejection::default() }),
        }
        Ok(())
    }
}

impl Transactions for FakeKernel {
    async fn commit_next(&mut self, _: &BTreeSet<u32>, remaining: &[u32]) -> Result<(usize, Answer)> {
        let taken = self.batch.min(remaining.len());
        Ok((taken, self.commit(&remaining[..taken])))
    }

    async fn commit_part(&mut self, committed: &BTreeSet<u32>, part: &[u32]) -> Result<Answer> {
        assert_eq!(*committed, self.committed);
        Ok(self.commit(part))
    }
}

fn updates(count: u32) -> Vec<ServicePortUpdate<()>> {
    let key = |n| mk_key(&format!("default/svc-{n}"));
    (0..count).map(|n| ServicePortUpdate { key: key(n), desired: PerFamily::default() }).collect()
}

#[tokio::test]
async fn only_invalid_service_ports_are_left_out() {
    for names in [true, false] {
        for batch in [1, 7, 100] {
            for invalid in [&[][..], &[0], &[99], &[3, 4, 50]] {
                let mut kernel = FakeKernel::new(invalid.iter().copied(), names, batch);
                let rejected = commit_all(&mut kernel, &updates(100), 0).await.unwrap();
                assert!(rejected.keys().eq(invalid), "{names} {batch} {invalid:?}: {rejected:?}");
                assert_eq!(kernel.committed.len(), 100 - invalid.len());
            }
        }
    }
}

#[tokio::test]
async fn bisecting_takes_few_transactions() {
    let mut kernel = FakeKernel::new([700], false, 1_000);
    commit_all(&mut kernel, &updates(1_000), 0).await.unwrap();
    assert!(kernel.transactions < 30, "{}", kernel.transactions);
}

#[tokio::test]
async fn a_rejected_base_ruleset_and_too_many_rejections_are_errors() {
    for count in [0, 3] {
        let mut kernel = FakeKernel { base_is_valid: false, ..FakeKernel::new([], false, 100) };
        assert!(commit_all(&mut kernel, &updates(count), 0).await.is_err());
    }
    let mut kernel = FakeKernel::new(0..100, true, 100);
    assert!(commit_all(&mut kernel, &updates(100), 0).await.is_err());
}
