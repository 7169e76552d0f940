//! JSON: one object after the other, whitespace between them.

use super::{
    facts::Facts,
    fault::Fault,
    place::{Node, Shape, TextOf},
    skip::{Skip, Skipped},
    step::{Mark, Step},
};
use crate::escape::hex_value;

/// Most levels of containers that are parsed: event, object, rows, row, object, metadata,
/// annotations. (A review has five.)
const LEVELS: usize = 7;
/// Longest number that is read, in bytes.
const MAX_NUMBER: usize = 32;

#[derive(Debug)]
pub(crate) struct Json {
    root: Node,
    state: JsonState,
    escape: Escape,
    /// Open containers, outermost first.
    open: [Node; LEVELS],
    level: usize,
    /// Whether the last object still lacks a newline behind it.
    lacks_newline: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonState {
    /// The gap between two documents.
    Between,
    /// An object's start: its first name comes, or its end.
    FirstName,
    Name,
    Colon(Node),
    /// An array's start: its first item comes, or its end.
    FirstItem(Node),
    Value(Node),
    /// The end of a value: a comma comes, or the end of the container.
    Next,
    Text(TextOf),
    /// A number, true, false or null.
    Scalar,
    /// The number of `remainingItemCount`: bytes so far.
    Remaining(usize),
    Skip(Skip),
}

/// The effect of one byte on the structure.
enum Effect {
    /// The items of a list were opened, or a marked value began.
    Mark(Mark),
    Closed(Node),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    /// The last character was the first half of a surrogate pair.
    High(u16),
    /// A backslash was read; the surrogate half before it, or 0.
    Backslash(u16),
    /// An escape `\u`: the surrogate half, digits read, value so far.
    Unicode(u16, u8, u16),
}

impl Json {
    pub(super) const fn new(root: Node) -> Self {
        Self {
            root,
            state: JsonState::Between,
            escape: Escape::None,
            open: [Node::Skip; LEVELS],
            level: 0,
            lacks_newline: false,
        }
    }

    pub(super) fn is_between(&self) -> bool {
        self.state == JsonState::Between
    }

    pub(crate) fn lacks_newline(&self) -> bool {
        self.lacks_newline && self.is_between()
    }

    pub(super) fn pending(&self) -> usize {
        match self.state {
            JsonState::Remaining(length) => length,
            _ => 0,
        }
    }

    pub(super) fn walk(&mut self, chunk: &[u8], facts: &mut Facts) -> Result<Step, Fault> {
        let mut rest = chunk;
        while let Some((first, behind)) = rest.split_first() {
            rest = match &mut self.state {
                JsonState::Skip(skip) => match skip.run(rest) {
                    Skipped::More => return Ok(Step::More),
                    Skipped::TooDeep => return Err(Fault::TooDeep),
                    Skipped::End(length) => {
                        self.state = JsonState::Next;
                        rest.get(length..).unwrap_or_default()
                    }
                },
                JsonState::Text(target) => {
                    let target = *target;
                    self.text(target, rest, facts)?
                }
                // The byte behind a scalar belongs to the next token.
                JsonState::Scalar if is_end_of_number(*first) => {
                    self.state = JsonState::Next;
                    rest
                }
                JsonState::Scalar => behind,
                JsonState::Remaining(token) if is_end_of_number(*first) => {
                    let token = *token;
                    self.state = JsonState::Next;
                    return Ok(Step::Mark(Mark::Remaining { token }, chunk.len() - rest.len()));
                }
                JsonState::Remaining(token) if *token < MAX_NUMBER => {
                    *token += 1;
                    behind
                }
                JsonState::Remaining(_) => return Err(Fault::Length),
                _ if is_space(*first) => {
                    self.lacks_newline &= *first != b'\n';
                    behind
                }
                _ => {
                    let at = chunk.len() - behind.len();
                    match self.structure(*first, facts)? {
                        None => behind,
                        Some(Effect::Mark(mark)) => return Ok(Step::Mark(mark, at)),
                        Some(Effect::Closed(Node::ListMeta | Node::ReviewMeta)) => {
                            return Ok(Step::Known(at));
                        }
                        Some(Effect::Closed(node)) if node.is_item() || node.is_review_part() => {
                            return Ok(Step::Mark(Mark::Item, at));
                        }
                        Some(Effect::Closed(node)) if node.is_items() => {
                            return Ok(Step::Mark(Mark::Close { token: 1 }, at));
                        }
                        Some(Effect::Closed(_)) if self.level == 0 => {
                            let newline = behind.first() == Some(&b'\n');
                            self.lacks_newline = !newline;
                            return Ok(Step::End(at + usize::from(newline)));
                        }
                        Some(Effect::Closed(_)) => behind,
                    }
                }
            };
        }
        Ok(Step::More)
    }

    /// Reads one byte of structure; returns its effect.
    fn structure(&mut self, byte: u8, facts: &mut Facts) -> Result<Option<Effect>, Fault> {
        match (self.state, byte) {
            (JsonState::Between, b'{') => self.enter(self.root)?,
            (JsonState::Between, _) => return Err(Fault::NotAnObject),
            (JsonState::FirstName | JsonState::Name, b'"') => {
                facts.begin_name();
                self.state = JsonState::Text(TextOf::Name);
            }
            (JsonState::FirstName, b'}') => return self.close(facts),
            (JsonState::FirstItem(_), b']') => return self.close(facts),
            (JsonState::Colon(node), b':') => self.state = JsonState::Value(node),
            (JsonState::Value(node) | JsonState::FirstItem(node), _) => {
                return self.value(node, byte, facts);
            }
            (JsonState::Next, b',') => {
                self.state = match self.innermost() {
                    Some(node) if node.shape() == Shape::Array => JsonState::Value(node.item()),
                    _ => JsonState::Name,
                };
            }
            (JsonState::Next, b'}' | b']') => {
                let array = self.innermost().is_some_and(|node| node.shape() == Shape::Array);
                if array != (byte == b']') {
                    return Err(Fault::Unexpected);
                }
                return self.close(facts);
            }
            _ => return Err(Fault::Unexpected),
        }
        Ok(None)
    }

    /// Reads the first byte of a value.
    fn value(&mut self, node: Node, byte: u8, facts: &mut Facts) -> Result<Option<Effect>, Fault> {
        let is_null = byte == b'n';
        if is_null {
            facts.null(node);
        } else {
            facts.begin(node);
        }
        let shape = node.shape();
        let begun = || node.is_marked().then_some(Effect::Mark(Mark::Value { node, token: 1 }));
        match byte {
            b'{' if shape == Shape::Map => return self.enter(node).map(|()| begun()),
            b'[' if shape == Shape::Array => {
                self.enter(node)?;
                return Ok(node.is_items().then_some(Effect::Mark(Mark::Open { token: 1 })));
            }
            b'"' if shape == Shape::Text => {
                facts.begin_text(node);
                self.state = JsonState::Text(TextOf::Place(node));
                return Ok(None);
            }
            // An item that cannot be judged does not pass.
            _ if node.is_item() => return Err(Fault::NotAnObject),
            _ if node.is_items() && !is_null => return Err(Fault::NotItems),
            b'-' | b'0'..=b'9' | b'n' if shape == Shape::Number => {
                self.state = JsonState::Remaining(1)
            }
            b't' | b'f' if shape == Shape::Flag => {
                facts.flag(node, byte == b't');
                self.state = JsonState::Scalar;
                return Ok(None);
            }
            b'"' => self.state = JsonState::Text(TextOf::Nothing),
            b'{' | b'[' => self.state = JsonState::Skip(Skip::new()),
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => self.state = JsonState::Scalar,
            _ => return Err(Fault::Unexpected),
        }
        if node.is_items() {
            facts.no_items();
        }
        if shape == Shape::Skip {
            return Ok(None);
        }
        if !is_null {
            facts.misfit(node);
        }
        Ok(begun())
    }

    fn enter(&mut self, node: Node) -> Result<(), Fault> {
        *self.open.get_mut(self.level).ok_or(Fault::TooDeep)? = node;
        self.level += 1;
        self.state = match node.shape() {
            Shape::Array => JsonState::FirstItem(node.item()),
            _ => JsonState::FirstName,
        };
        Ok(())
    }

    fn close(&mut self, facts: &mut Facts) -> Result<Option<Effect>, Fault> {
        let node = self.innermost().ok_or(Fault::Unexpected)?;
        self.level -= 1;
        self.state = if self.level == 0 { JsonState::Between } else { JsonState::Next };
        facts.end(node);
        Ok(Some(Effect::Closed(node)))
    }

    fn innermost(&self) -> Option<Node> {
        self.open.get(self.level.checked_sub(1)?).copied()
    }

    /// Reads text up to its quote or to the end of the chunk.
    fn text<'c>(
        &mut self,
        target: TextOf,
        mut rest: &'c [u8],
        facts: &mut Facts,
    ) -> Result<&'c [u8], Fault> {
        loop {
            if !matches!(self.escape, Escape::None | Escape::High(_)) {
                let Some((byte, behind)) = rest.split_first() else {
                    return Ok(rest);
                };
                self.escaped(*byte, facts)?;
                rest = behind;
                continue;
            }
            let Some(at) = memchr::memchr2(b'"', b'\\', rest) else {
                self.plain(target, rest, facts);
                return Ok(&[]);
            };
            let (piece, behind) = rest.split_at_checked(at).unwrap_or((rest, &[]));
            self.plain(target, piece, facts);
            let (stop, behind) = behind.split_first().unwrap_or((&b'"', behind));
            rest = behind;
            if *stop == b'"' {
                self.escape = Escape::None;
                self.end_text(target, facts);
                return Ok(rest);
            }
            let high = if let Escape::High(high) = self.escape { high } else { 0 };
            self.escape = Escape::Backslash(high);
        }
    }

    fn plain(&mut self, target: TextOf, piece: &[u8], facts: &mut Facts) {
        if !piece.is_empty() {
            self.escape = Escape::None;
            if target != TextOf::Nothing {
                facts.push(piece);
            }
        }
    }

    fn end_text(&mut self, target: TextOf, facts: &mut Facts) {
        self.state = match target {
            TextOf::Name => {
                let node = self.innermost().unwrap_or(Node::Skip);
                JsonState::Colon(facts.named(node))
            }
            TextOf::Place(node) => {
                facts.end_text(node);
                JsonState::Next
            }
            TextOf::Nothing => JsonState::Next,
        };
    }

    /// Reads one byte of an escape. The character is pushed even if it is not needed: escapes are
    /// rare.
    fn escaped(&mut self, byte: u8, facts: &mut Facts) -> Result<(), Fault> {
        self.escape = match (self.escape, byte) {
            (Escape::Backslash(high), b'u') => Escape::Unicode(high, 0, 0),
            (Escape::Unicode(high, digits, value), _) => {
                let digit = hex_value(byte).ok_or(Fault::Escape)?;
                let value = value << 4 | u16::from(digit);
                if digits == 3 {
                    unit(high, value, facts)
                } else {
                    Escape::Unicode(high, digits + 1, value)
                }
            }
            _ => {
                let plain = match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 8,
                    b'f' => 12,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    _ => return Err(Fault::Escape),
                };
                facts.push(&[plain]);
                Escape::None
            }
        };
        Ok(())
    }
}

/// Reads one UTF-16 unit; half a surrogate pair is U+FFFD, as in Go.
fn unit(high: u16, unit: u16, facts: &mut Facts) -> Escape {
    let pair = char::decode_utf16([high, unit]).next().and_then(Result::ok);
    let character = match pair.filter(|_| high != 0) {
        Some(character) => {
            facts.unpush_replacement();
            character
        }
        None => char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    facts.push(character.encode_utf8(&mut [0; 4]).as_bytes());
    if (0xd800..0xdc00).contains(&unit) { Escape::High(unit) } else { Escape::None }
}

const fn is_end_of_number(byte: u8) -> bool {
    matches!(byte, b',' | b']' | b'}') || is_space(byte)
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}
