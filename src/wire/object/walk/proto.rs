//! Protobuf, as Kubernetes frames it: an event is a big-endian length of 4 bytes and a
//! `WatchEvent`; an object is a magic number and a `runtime.Unknown` whose field `raw` is the
//! object. Lengths come first, so other fields are skipped unread.

use super::{
    facts::Facts,
    fault::Fault,
    place::{Node, Shape},
    step::{Mark, Step},
};

/// The magic in front of every protobuf object (`k8s` and a zero byte).
pub const MAGIC: &[u8; 4] = b"k8s\0";
/// Most levels of messages that are parsed: event, extension, envelope, object, metadata,
/// annotation.
const LEVELS: usize = 6;
/// The end of a list, which is the body's.
const NO_END: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Proto {
    root: Node,
    state: ProtoState,
    /// Offset in the body of the next byte.
    at: u64,
    /// Open messages, outermost first.
    open: [Message; LEVELS],
    level: usize,
    /// The varint being read.
    varint: u64,
    shift: u32,
}

#[derive(Debug, Clone, Copy)]
struct Message {
    node: Node,
    /// Offset in the body behind its last byte.
    end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtoState {
    /// The length of an event: bytes read, value so far.
    Frame(u8, u32),
    /// The magic number: bytes read.
    Magic(usize),
    Tag,
    Length(Node),
    Number(Node),
    /// The text of a place, until this offset.
    Text(Node, u64),
    Skip(u64),
}

impl Proto {
    pub(super) fn new(root: Node) -> Self {
        let mut proto = Self {
            root,
            state: ProtoState::Frame(0, 0),
            at: 0,
            open: [Message { node: Node::Skip, end: 0 }; LEVELS],
            level: 0,
            varint: 0,
            shift: 0,
        };
        let envelope = match root {
            Node::Object => Some(Node::ObjectEnvelope),
            Node::List => Some(Node::ListEnvelope),
            Node::ItemList => Some(Node::ItemsEnvelope),
            Node::Written => Some(Node::WrittenEnvelope),
            Node::Options => Some(Node::OptionsEnvelope),
            _ => None,
        };
        if let Some(envelope) = envelope {
            // Cannot fail: nothing is open yet.
            let _ = proto.enter(envelope, NO_END);
        }
        proto
    }

    pub(super) fn pending(&self) -> usize {
        if self.state == ProtoState::Tag { self.varint_length() } else { 0 }
    }

    /// Bytes so far of the varint being read.
    fn varint_length(&self) -> usize {
        // Seven bits a byte.
        usize::try_from(self.shift / 7).unwrap_or_default()
    }

    pub(super) fn is_between(&self) -> bool {
        match self.root {
            Node::Event => self.state == ProtoState::Frame(0, 0),
            _ => self.level == 1 && self.shift == 0 && self.state == ProtoState::Tag,
        }
    }

    pub(super) fn walk(&mut self, chunk: &[u8], facts: &mut Facts) -> Result<Step, Fault> {
        let mut rest = chunk;
        loop {
            let at = chunk.len() - rest.len();
            match self.close(facts) {
                Some(Node::ListMeta) => return Ok(Step::Known(at)),
                Some(Node::Event) => return Ok(Step::End(at)),
                Some(Node::Item) => return Ok(Step::Mark(Mark::Item, at)),
                Some(_) => continue,
                None => {}
            }
            if rest.is_empty() {
                return Ok(Step::More);
            }
            rest = match self.state {
                ProtoState::Skip(until) => self.jump(until, rest).1,
                ProtoState::Text(node, until) => {
                    let (piece, rest) = self.jump(until, rest);
                    facts.push(piece);
                    if self.state == ProtoState::Tag {
                        facts.end_text(node);
                    }
                    rest
                }
                _ => {
                    let (byte, rest) = rest.split_first().ok_or(Fault::Truncated)?;
                    self.at += 1;
                    if let Some(mark) = self.byte(*byte, facts)? {
                        return Ok(Step::Mark(mark, at + 1));
                    }
                    rest
                }
            };
        }
    }

    /// Ends the innermost message if all of it was read.
    fn close(&mut self, facts: &mut Facts) -> Option<Node> {
        let message = self.innermost()?;
        if message.end != self.at || self.state != ProtoState::Tag || self.shift != 0 {
            return None;
        }
        self.level -= 1;
        if self.level == 0 {
            self.state = ProtoState::Frame(0, 0);
        }
        facts.end(message.node);
        Some(message.node)
    }

    fn byte(&mut self, byte: u8, facts: &mut Facts) -> Result<Option<Mark>, Fault> {
        match self.state {
            ProtoState::Frame(read, length) => {
                let length = length << 8 | u32::from(byte);
                if read < 3 {
                    self.state = ProtoState::Frame(read + 1, length);
                } else {
                    self.enter(Node::Event, self.at.saturating_add(length.into()))?;
                }
                Ok(None)
            }
            ProtoState::Magic(read) => {
                if MAGIC.get(read) != Some(&byte) {
                    return Err(Fault::Magic);
                }
                let all = read + 1 == MAGIC.len();
                self.state = if all { ProtoState::Tag } else { ProtoState::Magic(read + 1) };
                Ok(None)
            }
            _ => {
                let token = self.varint_length() + 1;
                match self.varint(byte)? {
                    None => Ok(None),
                    Some(_) if self.innermost().is_none_or(|message| self.at > message.end) => {
                        Err(Fault::Length)
                    }
                    Some(value) => self.number(value, token, facts),
                }
            }
        }
    }

    /// Handles a complete varint of `token` bytes.
    fn number(
        &mut self,
        value: u64,
        token: usize,
        facts: &mut Facts,
    ) -> Result<Option<Mark>, Fault> {
        self.state = match self.state {
            ProtoState::Tag => {
                let around = self.innermost().ok_or(Fault::Tag)?;
                let node = facts.numbered(around.node, value >> 3);
                self.state = self.tag(value, node, around.end)?;
                return Ok(self.mark_of_tag(node, token));
            }
            ProtoState::Number(node @ Node::KnownOption) => {
                self.state = ProtoState::Tag;
                return Ok(Some(Mark::Value { node, token }));
            }
            ProtoState::Number(node) => {
                facts.flag(node, value != 0);
                ProtoState::Tag
            }
            ProtoState::Length(node) => {
                let end = self.at.checked_add(value).ok_or(Fault::Length)?;
                if self.innermost().is_none_or(|message| end > message.end) {
                    return Err(Fault::Length);
                }
                facts.begin(node);
                match node.shape() {
                    Shape::Map => {
                        self.enter(node, end)?;
                        return Ok(match node {
                            Node::Item => Some(Mark::Body),
                            _ => node.is_marked().then_some(Mark::Value { node, token }),
                        });
                    }
                    Shape::Text => {
                        facts.begin_text(node);
                        if value == 0 {
                            facts.end_text(node);
                        }
                        Self::until(ProtoState::Text(node, end), value)
                    }
                    Shape::Any => {
                        self.state = Self::until(ProtoState::Skip(end), value);
                        return Ok(Some(Mark::Value { node, token }));
                    }
                    Shape::Skip | Shape::Array | Shape::Number | Shape::Flag => {
                        Self::until(ProtoState::Skip(end), value)
                    }
                }
            }
            _ => ProtoState::Tag,
        };
        Ok(None)
    }

    const fn mark_of_tag(&self, node: Node, token: usize) -> Option<Mark> {
        match (node, self.state) {
            (Node::Item, ProtoState::Length(_)) => Some(Mark::Tag { token }),
            (Node::Remaining, ProtoState::Number(_)) => Some(Mark::Remaining { token }),
            _ => None,
        }
    }

    /// The state behind the tag of a field, whose message ends at `end`.
    fn tag(&self, tag: u64, node: Node, end: u64) -> Result<ProtoState, Fault> {
        if !(1..1 << 29).contains(&(tag >> 3)) {
            return Err(Fault::Tag);
        }
        let fixed = |length: u64| {
            let until = self.at.saturating_add(length);
            if until > end { Err(Fault::Length) } else { Ok(ProtoState::Skip(until)) }
        };
        match tag & 7 {
            2 => Ok(ProtoState::Length(node)),
            // Go refuses a known field of another type.
            0 | 1 | 5 if node.is_marked() && (tag & 7, node) != (0, Node::KnownOption) => {
                Err(Fault::Tag)
            }
            0 => Ok(ProtoState::Number(node)),
            1 => fixed(8),
            5 => fixed(4),
            _ => Err(Fault::Tag),
        }
    }

    /// The given state; the next tag if the field is empty.
    const fn until(state: ProtoState, length: u64) -> ProtoState {
        if length == 0 { ProtoState::Tag } else { state }
    }

    fn enter(&mut self, node: Node, end: u64) -> Result<(), Fault> {
        let envelope = matches!(
            node,
            Node::ObjectEnvelope
                | Node::ListEnvelope
                | Node::ItemsEnvelope
                | Node::WrittenEnvelope
                | Node::OptionsEnvelope
        );
        if envelope && end < self.at.saturating_add(MAGIC.len() as u64) {
            return Err(Fault::Magic);
        }
        *self.open.get_mut(self.level).ok_or(Fault::TooDeep)? = Message { node, end };
        self.level += 1;
        self.state = if envelope { ProtoState::Magic(0) } else { ProtoState::Tag };
        Ok(())
    }

    fn innermost(&self) -> Option<Message> {
        self.open.get(self.level.checked_sub(1)?).copied()
    }

    /// Moves to an offset, or to the end of the chunk.
    fn jump<'c>(&mut self, until: u64, rest: &'c [u8]) -> (&'c [u8], &'c [u8]) {
        let length = usize::try_from(until.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let (piece, rest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        self.at = self.at.saturating_add(piece.len() as u64);
        if self.at == until {
            self.state = ProtoState::Tag;
        }
        (piece, rest)
    }

    fn varint(&mut self, byte: u8) -> Result<Option<u64>, Fault> {
        if self.shift > 63 || (self.shift == 63 && byte > 1) {
            return Err(Fault::Varint);
        }
        self.varint |= u64::from(byte & 0x7f) << self.shift;
        self.shift += 7;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.shift = 0;
        Ok(Some(std::mem::take(&mut self.varint)))
    }
}
