//! Drivers over the fake kernel, for tests.

use backend::{dataplane::DataplaneOptions, driver::Driver};

use crate::{data_plane::NftDataPlane, kernel::fake::Fake};

/// A driver over the fake.
pub(crate) type FakeDriver = Driver<NftDataPlane<Fake>>;

impl Fake {
    /// A new driver, as after a restart.
    pub(crate) fn driver(&self, options: DataplaneOptions) -> FakeDriver {
        Driver::new(NftDataPlane::new(self.clone(), options))
    }
}
