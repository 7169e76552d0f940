//! The limits of the memory for one item or event.

/// Most bytes that are held of one item or event. The API server stores 1.5 MiB by default, and
/// etcd is rarely configured for more than 8.
pub(super) const MAX_ITEM: usize = 64 << 20;
/// Held memory above this is freed after the item.
pub(super) const KEPT_CAPACITY: usize = 256 << 10;
