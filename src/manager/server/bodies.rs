//! Bodies that are read whole, within bounds of size, time and memory.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use ctrlmesh_wire::status::{Reason, Status};

/// The time of a whole body, less than the API server waits for an answer.
const WITHIN: Duration = Duration::from_secs(4);
/// The most bytes of a body that are read away.
const READ_AWAY: usize = 16 << 20;
/// The time in which room must be free.
const WAIT: Duration = Duration::from_secs(1);
/// Memory of all small bodies, and of all larger ones: those of someone who sends much hold up
/// no one else's.
const SMALL: usize = 256 << 10;
const ROOM_OF_SMALL: usize = 16 << 20;
const ROOM_OF_LARGE: usize = 24 << 20;

/// The memory for bodies, and for the responses to them until those are sent.
#[derive(Debug)]
pub(super) struct Bodies {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// A body, and the room that it takes.
pub(super) struct Whole {
    pub(super) bytes: Vec<u8>,
    pub(super) place: OwnedSemaphorePermit,
}

impl Default for Bodies {
    fn default() -> Self {
        let room = |bytes| Arc::new(Semaphore::new(bytes));
        Self { small: room(ROOM_OF_SMALL), large: room(ROOM_OF_LARGE) }
    }
}

impl Bodies {
    /// Reads a body of at most `most` bytes, whose length was said. Fails with the response to give
    /// instead.
    pub(super) async fn read(&self, mut body: Incoming, most: usize) -> Result<Whole, Box<Status>> {
        let read = self.try_read(&mut body, most).await;
        if read.is_err() {
            let _ = timeout(WITHIN, read_away(body)).await;
        }
        read
    }

    async fn try_read(&self, body: &mut Incoming, most: usize) -> Result<Whole, Box<Status>> {
        let refuse = |reason, message: String| Err(Box::new(Status::new(reason, message)));
        let Some(length) = body.size_hint().exact() else {
            let message = "a Content-Length is needed".to_owned();
            return refuse(Reason::BadRequest, message);
        };
        let too_large = || format!("the body has {length} bytes, and {most} are taken");
        let Ok(bytes) = usize::try_from(length) else {
            return refuse(Reason::RequestEntityTooLarge, too_large());
        };
        if bytes > most {
            return refuse(Reason::RequestEntityTooLarge, too_large());
        }
        let room = if bytes <= SMALL { &self.small } else { &self.large };
        let place = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
        let place = timeout(WAIT, Arc::clone(room).acquire_many_owned(place)).await;
        let Ok(Ok(place)) = place else {
            let message = "too many bodies are under way; try again".to_owned();
            return refuse(Reason::TooManyRequests, message);
        };
        match timeout(WITHIN, collect(body, bytes)).await {
            Ok(Some(bytes)) => Ok(Whole { bytes, place }),
            Ok(None) => refuse(Reason::BadRequest, "the body broke off".to_owned()),
            Err(_) => {
                let message = format!("the body was not whole in {} s", WITHIN.as_secs());
                refuse(Reason::Timeout, message)
            }
        }
    }
}

/// The body, in memory of its length alone. `None` if it broke off, or has another length.
async fn collect(body: &mut Incoming, length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if bytes.len() + data.len() > length {
                return None;
            }
            bytes.extend_from_slice(&data);
        }
    }
    (bytes.len() == length).then_some(bytes)
}

/// Reads the rest of a body that no one needs, so that its sender reads the response: many write all
/// before they read.
async fn read_away(mut body: Incoming) {
    let mut left = READ_AWAY;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
