//! Bodies of requests that are buffered whole, within the room that all of them share.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::upstream::{Place, Room};
use ctrlmesh_policy::{Refusal, Refused};

/// Timeout until a body has arrived whole.
const WHOLE_WITHIN: Duration = Duration::from_secs(30);

/// A body that is buffered whole. It takes room until the last of its bytes is passed on.
#[derive(Debug)]
pub(super) struct WholeBody {
    /// The content. What replaces it is longer by a name at most, and takes no more room.
    pub(super) bytes: Vec<u8>,
    /// The room that it takes: the capacity of `bytes`.
    place: Place,
}

impl WholeBody {
    /// Reads a body of at most `limit` bytes to its end. It takes room only for bytes that have
    /// arrived: announced ones take none. Fails with `BodyTooLarge`, `NoRoom`, `BodyTimeout`;
    /// `BadBody` if it is cut off.
    pub(super) async fn whole<B>(room: &Arc<Room>, body: B, limit: usize) -> Result<Self, Refused>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut held = Self { bytes: Vec::new(), place: Place::empty(room) };
        match timeout(WHOLE_WITHIN, held.fill(body, limit)).await {
            Ok(filled) => filled.map(|()| held),
            Err(_) => {
                let why =
                    format!("the body was not complete within {WHOLE_WITHIN:?}: send it faster");
                Err(Refusal::BodyTimeout.because(why))
            }
        }
    }

    async fn fill<B>(&mut self, mut body: B, limit: usize) -> Result<(), Refused>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        if usize::try_from(body.size_hint().lower()).is_ok_and(|announced| announced > limit) {
            return Err(too_large(limit));
        }
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::BadBody.because("the body was cut off"))?;
            if let Ok(data) = frame.into_data() {
                self.push(&data, limit)?;
            }
        }
        Ok(())
    }

    /// Copies `data`, which is a slice of the connection's buffer and would keep all of it.
    fn push(&mut self, data: &[u8], limit: usize) -> Result<(), Refused> {
        let length = self.bytes.len().saturating_add(data.len());
        if length > limit {
            return Err(too_large(limit));
        }
        let taken = self.place.bytes();
        if length > taken {
            let capacity = length.max(taken + taken / 2).min(limit);
            self.place.grow(capacity)?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

fn too_large(limit: usize) -> Refused {
    let (most, unit) = if limit < 1 << 20 { (limit >> 10, "KiB") } else { (limit >> 20, "MiB") };
    Refusal::BodyTooLarge.because(format!("the body is larger than {most} {unit}: send less"))
}

impl AsRef<[u8]> for WholeBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<WholeBody> for Bytes {
    fn from(held: WholeBody) -> Self {
        Self::from_owner(held)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, stream};
    use http_body::Frame;
    use http_body_util::{Empty, Full, StreamBody};
    use prometheus_client::metrics::gauge::Gauge;
    use tokio::time::Instant;

    use super::*;

    const LIMIT: usize = 3 << 20;

    /// A room, and the gauge of its taken bytes.
    fn room() -> (Arc<Room>, Gauge) {
        let taken = Gauge::default();
        (Room::new(16 << 20, &taken), taken)
    }

    fn of(length: usize) -> Full<Bytes> {
        Full::new(Bytes::from(vec![b'x'; length]))
    }

    fn hold(room: &Arc<Room>, length: usize) -> Result<WholeBody, Refusal> {
        let held =
            WholeBody::whole(room, of(length), LIMIT).now_or_never().expect("all of it is there");
        held.map_err(|refused| refused.refusal)
    }

    /// Takes bodies until the room is full.
    fn fill(room: &Arc<Room>, length: usize) -> Vec<WholeBody> {
        std::iter::from_fn(|| match hold(room, length) {
            Ok(held) => Some(held),
            Err(refusal) => {
                assert_eq!(refusal, Refusal::NoRoom);
                None
            }
        })
        .collect()
    }

    #[tokio::test]
    async fn the_last_of_the_room_is_for_small_bodies_and_for_leases() {
        let (room, taken) = room();
        let large = fill(&room, 1 << 20);
        assert_eq!(large.len(), 12);
        let medium = fill(&room, 64 << 10);
        assert_eq!(medium.len(), 3 << 4);
        assert_eq!(hold(&room, (4 << 10) + 1).err(), Some(Refusal::NoRoom));
        let small = fill(&room, 4 << 10);
        assert_eq!(small.len(), 1 << 8);
        assert_eq!(taken.get(), 16 << 20);
        drop((large, small));
        let sent = Bytes::from(medium.into_iter().next().expect("there is one"));
        let part = sent.slice(5..6);
        drop(sent);
        assert_eq!(taken.get(), 64 << 10, "a part keeps it all");
        drop(part);
        assert_eq!(taken.get(), 0);
        assert_eq!(fill(&room, 1 << 20).len(), 12, "all of it is free");
    }

    #[tokio::test]
    async fn a_body_takes_what_has_arrived_and_little_more() {
        let (room, _) = room();
        let pieces = stream::iter(
            (0..1000).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 1000])))),
        );
        let held = WholeBody::whole(&room, StreamBody::new(pieces), LIMIT).await.unwrap();
        assert_eq!(held.as_ref().len(), 1_000_000);
        assert!(
            held.bytes.capacity() <= held.place.bytes() && held.place.bytes() < 1_500_000,
            "{}",
            held.place.bytes()
        );
        assert_eq!(hold(&room, LIMIT).err(), None);
        assert_eq!(hold(&room, LIMIT + 1).err(), Some(Refusal::BodyTooLarge));
        let empty = WholeBody::whole(&room, Empty::<Bytes>::new(), LIMIT).await.unwrap();
        assert_eq!((empty.as_ref(), empty.place.bytes()), (&b""[..], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn bad_body_that_is_not_whole_in_time() {
        let (room, taken) = room();
        let begun = Instant::now();
        let never =
            stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{"))) });
        let never = stream::StreamExt::chain(never, stream::pending());
        let body = StreamBody::new(Box::pin(never));
        let refused = WholeBody::whole(&room, body, LIMIT).await.expect_err("it has no end");
        assert_eq!(refused.refusal.label(), "body_timeout");
        assert_eq!((refused.status.code, begun.elapsed()), (504, WHOLE_WITHIN));
        assert_eq!(taken.get(), 0);
    }
}
