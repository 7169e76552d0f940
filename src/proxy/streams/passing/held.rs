//! The memory for objects that are not whole yet.
//!
//! A stream that judges objects holds the bytes of each until it is whole. One object may be large,
//! and all streams together share one room: beyond it a stream breaks off, and its client asks
//! again. One that is alone may hold more, and small objects need no room.

use std::sync::Arc;

use crate::{
    streams::error::BodyError,
    upstream::{Place, Room},
};

/// Bytes that each stream may hold whatever the others do. Most objects have fewer.
const SMALL: usize = 64 << 10;

/// The bytes that one stream holds.
#[derive(Debug)]
pub(in crate::streams) struct Held(Place);

impl Held {
    pub(in crate::streams) fn new(room: &Arc<Room>) -> Self {
        Self(Place::empty(room))
    }

    /// Records the bytes that the stream holds now. If there is no room for them it holds none: it
    /// is about to break off, and the others go on. Fails with [`BodyError::NoRoom`] if they are
    /// more than before, and more than there is room for.
    pub(in crate::streams) fn set(&mut self, bytes: usize) -> Result<(), BodyError> {
        let before = self.0.bytes();
        // Most pieces change nothing, and the count is of all threads.
        if bytes == before || self.0.set(bytes) || bytes <= before.max(SMALL) {
            return Ok(());
        }
        self.0.set(0);
        Err(BodyError::NoRoom)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::shared::UNFINISHED;

    #[test]
    fn only_objects_over_64_kib_count_against_the_budget() {
        let shown = Gauge::default();
        let room = Room::new(UNFINISHED, &shown);
        let [mut one, mut two, mut three] = [(); 3].map(|()| Held::new(&room));
        let half = UNFINISHED / 2;
        one.set(half).unwrap();
        two.set(half).unwrap();
        three.set(SMALL).unwrap();
        three.set(SMALL + 1).unwrap_err();
        two.set(half).expect("who breaks off holds nothing");
        two.set(half + 1).unwrap_err();
        one.set(UNFINISHED).unwrap();
        one.set(UNFINISHED + 1).expect("it is alone");
        three.set(SMALL + 1).unwrap_err();
        one.set(UNFINISHED).expect("less always has room");
        drop(one);
        three.set(UNFINISHED).unwrap();
        assert_eq!(shown.get(), 32 << 20);
    }
}
