//! Enums of the model and their wire values.

use super::InvalidMessage;
use crate::{
    model::{FailureKind, IpFamily, PoolClass, Protocol, Role, SyncMode, TrafficPolicy},
    v1,
};

/// An enum with a wire value for each variant.
pub(super) trait WireEnum: Sized {
    /// The enum in errors.
    const NAME: &'static str;

    /// The variant of a wire value; `None` if the value is unspecified or unknown.
    fn known(value: i32) -> Option<Self>;

    /// The wire value.
    fn to_wire(self) -> i32;

    /// The variant of a mandatory field.
    fn from_wire(value: i32, field: &str) -> Result<Self, InvalidMessage> {
        Self::known(value).ok_or_else(|| InvalidMessage::new(field, format!("unknown {} {value}", Self::NAME)))
    }

    /// The variant of a field that may be unspecified.
    fn from_wire_or(default: Self, value: i32, field: &str) -> Result<Self, InvalidMessage> {
        if value == 0 { Ok(default) } else { Self::from_wire(value, field) }
    }
}

macro_rules! wire_enums {
    ($($name:ident = $text:literal: $($variant:ident)+;)+) => {$(
        impl From<$name> for v1::$name {
            fn from(value: $name) -> Self {
                match value {
                    $($name::$variant => Self::$variant,)+
                }
            }
        }

        impl WireEnum for $name {
            const NAME: &'static str = $text;

            fn known(value: i32) -> Option<Self> {
                match v1::$name::try_from(value) {
                    $(Ok(v1::$name::$variant) => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn to_wire(self) -> i32 {
                v1::$name::from(self).into()
            }
        }
    )+};
}

wire_enums! {
    Protocol = "protocol": Tcp Udp Sctp;
    TrafficPolicy = "traffic policy": Cluster Local;
    PoolClass = "pool class": Cluster Local Established Gone;
    IpFamily = "IP family": V4 V6;
    Role = "role": Backend Observer Shadow;
    SyncMode = "sync mode": Resume Repair Snapshot;
    FailureKind = "failure kind": Program HealthCheck;
}
