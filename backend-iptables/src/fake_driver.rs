//! Drivers over the fake kernel, for tests.

use backend::{dataplane::DataplaneOptions, driver::Driver};

use crate::{data_plane::IptablesDataPlane, kernel::fake::FakeKernel};

/// A driver over the fake.
pub(crate) type FakeDriver = Driver<IptablesDataPlane<FakeKernel>>;

impl FakeKernel {
    /// A driver that has not read the kernel yet.
    pub(crate) fn driver(&self, options: DataplaneOptions) -> FakeDriver {
        Driver::new(IptablesDataPlane::new(self.clone(), options))
    }
}
