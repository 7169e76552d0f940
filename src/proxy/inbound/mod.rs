//! The inbound leg: an admission review is answered by a pod of the shard that owns its object.
//!
//! - [`peers`]: the other pods, and the way to them.

#[cfg_attr(
    not(test),
    expect(dead_code, unused_imports, reason = "the listener is the first that uses it")
)]
pub(in crate::proxy) mod peers;
