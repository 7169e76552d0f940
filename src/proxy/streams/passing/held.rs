//! The memory for objects that are not whole yet.
//!
//! A stream that judges objects holds the bytes of each until it is whole. One object may be large,
//! and all streams together share one room: beyond it a stream breaks off, and its client asks
//! again. Small objects need no room.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::proxy::{metrics::Metrics, streams::error::BodyError};

/// Most bytes of the unfinished objects of all streams. One that is alone may hold more.
const MAX_HELD: usize = 32 << 20;
/// Bytes that each stream may hold whatever the others do. Most objects have fewer.
const SMALL: usize = 64 << 10;

/// The bytes that all streams hold.
#[derive(Debug)]
pub(in crate::proxy) struct HeldRoom {
    bytes: AtomicUsize,
    metrics: Arc<Metrics>,
}

/// The bytes that one stream holds.
#[derive(Debug)]
pub(in crate::proxy::streams) struct Held {
    bytes: usize,
    room: Arc<HeldRoom>,
}

impl HeldRoom {
    pub(in crate::proxy) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::default(), metrics })
    }
}

impl Held {
    pub(in crate::proxy::streams) fn new(room: &Arc<HeldRoom>) -> Self {
        Self { bytes: 0, room: Arc::clone(room) }
    }

    /// Records the bytes that the stream holds now. If there is no room for them it holds none: it
    /// is about to break off, and the others go on.
    ///
    /// # Errors
    /// [`BodyError::NoRoom`] if they are more than before, and more than there is room for.
    pub(in crate::proxy::streams) fn set(&mut self, bytes: usize) -> Result<(), BodyError> {
        let before = self.bytes;
        // Most pieces change nothing, and the count is of all threads.
        if bytes == before {
            return Ok(());
        }
        let all = self.hold(bytes);
        let is_alone = all == bytes;
        if bytes <= before || bytes <= SMALL || all <= MAX_HELD || is_alone {
            return Ok(());
        }
        self.hold(0);
        Err(BodyError::NoRoom)
    }

    /// Records the bytes; returns those of all streams.
    fn hold(&mut self, bytes: usize) -> usize {
        let before = std::mem::replace(&mut self.bytes, bytes);
        self.room.metrics.filter_memory(before, bytes);
        let change = bytes.wrapping_sub(before);
        self.room.bytes.fetch_add(change, Ordering::Relaxed).wrapping_add(change)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hold(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_large_share_a_room_and_the_small_need_none() {
        let room = HeldRoom::new(Arc::new(Metrics::new().0));
        let [mut one, mut two, mut three] = [(); 3].map(|()| Held::new(&room));
        let half = MAX_HELD / 2;
        one.set(half).unwrap();
        two.set(half).unwrap();
        three.set(SMALL).unwrap();
        three.set(SMALL + 1).unwrap_err();
        two.set(half).expect("who breaks off holds nothing");
        two.set(half + 1).unwrap_err();
        one.set(MAX_HELD).unwrap();
        one.set(MAX_HELD + 1).expect("it is alone");
        three.set(SMALL + 1).unwrap_err();
        one.set(MAX_HELD).expect("less always has room");
        drop(one);
        three.set(MAX_HELD).unwrap();
        assert_eq!(room.bytes.load(Ordering::Relaxed), MAX_HELD);
    }
}
