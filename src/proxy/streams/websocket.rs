//! A watch that its client reads over WebSocket.
//!
//! The upstream's watch is plain HTTP, so that all that happens to its events is the same. They
//! become frames here, at the last step, and the client's own frames are heard and answered.

use std::{io, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    time::timeout,
};

use super::{body::ReplyBody, passing::Held};
use crate::upstream::Room;
use ctrlmesh_wire::websocket::{ClientFrames, Close, Events, Heard, put_close, put_pong};

/// Bytes of the client's frames that are read at once. Clients send pings, and few.
const HEARD: usize = 256;
/// Timeout of the client's own end after ours, so that it reads our last frame.
const FAREWELL: Duration = Duration::from_secs(1);

/// Both directions of a connection over which WebSocket has begun.
pub(crate) struct WebSocket<T> {
    reads: ReadHalf<T>,
    writes: WriteHalf<T>,
    client: ClientFrames,
}

impl<T: AsyncRead + AsyncWrite> WebSocket<T> {
    /// Both directions of a connection whose handshake has been answered.
    pub(crate) fn new(connection: T) -> Self {
        let (reads, writes) = split(connection);
        Self { reads, writes, client: ClientFrames::default() }
    }

    async fn write(&mut self, frames: &[u8]) -> io::Result<()> {
        self.writes.write_all(frames).await?;
        self.writes.flush().await
    }

    /// Says why it ends, and waits for the client's end. The kernel resets a connection that is closed
    /// over unread bytes, and the client may lose the last frame.
    async fn close(mut self, why: Close) {
        let mut last = Vec::new();
        put_close(&mut last, why);
        let farewell = async {
            self.write(&last).await?;
            self.writes.shutdown().await?;
            let mut unread = [0; HEARD];
            while self.reads.read(&mut unread).await? > 0 {}
            io::Result::Ok(())
        };
        let _ = timeout(FAREWELL, farewell).await;
    }
}

/// Answers what the client has sent; returns the reason to end, if it is one.
fn hear(client: &mut ClientFrames, mut input: &[u8], out: &mut Vec<u8>) -> Option<Close> {
    loop {
        match client.next(&mut input)? {
            Heard::Ping(payload) => put_pong(out, &payload),
            Heard::Close => return Some(Close::Normal),
            Heard::Unmasked => return Some(Close::Protocol),
        }
    }
}

/// Sends the events of a watch until the watch, the client or the connection ends. The bytes of an
/// event take room until the client has them.
pub(crate) async fn send_events<T: AsyncRead + AsyncWrite>(
    mut to: WebSocket<T>,
    mut watch: ReplyBody,
    mut events: Events,
    unfinished: &Arc<Room>,
) {
    let mut held = Held::new(unfinished);
    let mut input = [0; HEARD];
    let why = loop {
        let mut out = Vec::new();
        let end = tokio::select! {
            frame = watch.frame() => match frame {
                Some(Ok(frame)) => {
                    events.feed(frame.data_ref().map_or(&[], |data| data), &mut out);
                    if held.set(events.held() + out.len()).is_err() {
                        // There is no room for the event: the client asks again.
                        break Close::Normal;
                    }
                    None
                }
                Some(Err(_)) => Some(Close::Normal),
                None => {
                    events.end(&mut out);
                    Some(Close::Normal)
                }
            },
            read = to.reads.read(&mut input) => match read {
                Ok(count @ 1..) => {
                    hear(&mut to.client, input.get(..count).unwrap_or_default(), &mut out)
                }
                Ok(0) | Err(_) => return,
            },
        };
        if to.write(&out).await.is_err() || held.set(events.held()).is_err() {
            return;
        }
        if let Some(why) = end {
            break why;
        }
    };
    // The record of the request ends here: what follows is the connection's.
    drop(watch);
    to.close(why).await;
}
