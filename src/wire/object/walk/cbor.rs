//! CBOR (RFC 8949): a sequence of maps (RFC 8742). Kubernetes writes definite lengths and byte
//! strings; indefinite lengths, text strings and tags anywhere are read too, as by its own decoder.

use super::{
    facts::Facts,
    fault::Fault,
    head::{Head, MAX_ITEMS, UNTIL_BREAK},
    place::{Node, Shape, TextOf},
    step::{Mark, Step},
};

/// Most levels of containers that are parsed: event, object, rows, row, object, metadata,
/// annotations.
const LEVELS: usize = 7;
/// Most levels of indefinite length in skipped items. Definite ones inside each other need no
/// memory.
const MAX_OPEN: usize = 256;
/// Deepest nesting in a write, tags counted, as in Kubernetes.
const MAX_DEPTH: usize = 10_000;

/// Tag 55799 in front of every CBOR object.
pub(crate) const SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];

#[derive(Debug)]
pub(crate) struct Cbor {
    root: Node,
    /// Open containers that are parsed, outermost first.
    open: [Level; LEVELS],
    level: usize,
    /// Skipped items. Outside of writes only levels around an indefinite length are kept apart.
    skipped: Vec<Left>,
    /// Bytes left of the current string.
    payload: u64,
    /// The use of the current string.
    target: TextOf,
    /// The major type of a string that is in pieces, up to a break.
    in_pieces: Option<u8>,
    /// The first bytes of a head that is cut by the end of a chunk.
    cut: [u8; Head::MAX],
    cut_length: usize,
    /// Whether an event has begun.
    inside: bool,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    node: Node,
    /// Items left; in a map names and values count separately.
    left: u64,
    /// The place of the next item, if that is a value in a map.
    value: Option<Node>,
    /// Whether it ends with a break.
    has_break: bool,
}

/// The skipped items that are left at one level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Items(u64),
    /// Items up to a break.
    Array,
    /// Names and values up to a break, which cannot follow a name.
    Map {
        is_odd: bool,
    },
    /// Pieces of a string of this major type, up to a break.
    Pieces(u8),
}

impl Cbor {
    pub(super) const fn new(root: Node) -> Self {
        Self {
            root,
            open: [Level::NONE; LEVELS],
            level: 0,
            skipped: Vec::new(),
            payload: 0,
            target: TextOf::Nothing,
            in_pieces: None,
            cut: [0; Head::MAX],
            cut_length: 0,
            inside: false,
        }
    }

    pub(super) fn is_between(&self) -> bool {
        !self.inside
    }

    pub(super) fn walk(&mut self, chunk: &[u8], facts: &mut Facts) -> Result<Step, Fault> {
        let mut rest = chunk;
        loop {
            if self.payload > 0 {
                rest = self.payload(rest, facts);
            }
            let at = chunk.len() - rest.len();
            while let Some(closed) = self.close(facts) {
                if closed.node == Node::ListMeta {
                    return Ok(Step::Known(at));
                }
                if closed.node.is_item() {
                    return Ok(Step::Mark(Mark::Item, at));
                }
                if closed.node.is_items() {
                    let token = usize::from(closed.has_break);
                    return Ok(Step::Mark(Mark::Close { token }, at));
                }
                if self.level == 0 {
                    self.inside = false;
                    return Ok(Step::End(at));
                }
            }
            if rest.is_empty() {
                return Ok(Step::More);
            }
            self.inside = true;
            if !self.skipped.is_empty() && self.cut_length == 0 && !facts.is_strict() {
                rest = self.skip(rest)?;
                if self.payload > 0 || self.skipped.is_empty() {
                    continue;
                }
            }
            let Some((head, behind)) = self.head(rest)? else {
                return Ok(Step::More);
            };
            rest = behind;
            if let Some(mark) = self.item(head, facts)? {
                return Ok(Step::Mark(mark, chunk.len() - rest.len()));
            }
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.cut_length
    }

    /// Reads a head; one that the chunk's end cuts off is kept for the next chunk.
    fn head<'c>(&mut self, rest: &'c [u8]) -> Result<Option<(Head, &'c [u8])>, Fault> {
        if self.cut_length == 0
            && let Some(head) = Head::read(rest)?
        {
            return Ok(Some((head, rest.get(head.length..).unwrap_or_default())));
        }
        let mut rest = rest.iter();
        for byte in rest.by_ref() {
            if let Some(place) = self.cut.get_mut(self.cut_length) {
                *place = *byte;
                self.cut_length += 1;
            }
            if let Some(head) = Head::read(self.cut.get(..self.cut_length).unwrap_or_default())? {
                self.cut_length = 0;
                return Ok(Some((head, rest.as_slice())));
            }
        }
        Ok(None)
    }

    /// Reads an item according to its place.
    fn item(&mut self, head: Head, facts: &mut Facts) -> Result<Option<Mark>, Fault> {
        if !self.skipped.is_empty() {
            self.skip_item(head, facts)?;
        } else if self.in_pieces.is_some() {
            self.piece(head, facts)?;
        } else {
            match (head.major, self.innermost()) {
                // A tag changes nothing, but for bytes that stand for base64.
                (6, Some(Level { node, value, .. })) if value != Some(Node::Skip) => {
                    facts.odd(value.unwrap_or(node))?;
                }
                (6, None) => facts.odd(self.root)?,
                (7, Some(_)) if head.is_break() => self.end_by_break()?,
                (5, None) => self.enter(self.root, head)?,
                (_, None) => return Err(Fault::NotAnObject),
                (_, Some(Level { node, value: None, .. })) if node.shape() == Shape::Map => {
                    self.name(head, facts)?;
                }
                (_, Some(Level { node, value, .. })) => {
                    return self.value(value.unwrap_or_else(|| node.item()), head, facts);
                }
            }
        }
        Ok(None)
    }

    fn name(&mut self, head: Head, facts: &mut Facts) -> Result<(), Fault> {
        facts.begin_name();
        if matches!(head.major, 2 | 3) {
            return self.string(head, TextOf::Name, facts);
        }
        // Only names that are text lead to a place.
        facts.odd(self.innermost().map_or(self.root, |container| container.node))?;
        self.named(Node::Skip);
        self.skip_item_first(head, facts)
    }

    fn value(&mut self, node: Node, head: Head, facts: &mut Facts) -> Result<Option<Mark>, Fault> {
        if let Some(container) = self.innermost_mut() {
            container.value = None;
            container.count();
        }
        let null = head.major == 7 && matches!(head.argument, Some(22 | 23));
        if null {
            facts.null(node);
        } else {
            facts.begin(node);
        }
        match (node.shape(), head.major) {
            (Shape::Skip, _) => {
                self.skip_item_first(head, facts)?;
                return Ok(None);
            }
            (Shape::Map, 5) => self.enter(node, head)?,
            (Shape::Array, 4) => {
                self.enter(node, head)?;
                return Ok(node.is_items().then_some(Mark::Open { token: head.length }));
            }
            (Shape::Text, 2 | 3) => {
                facts.begin_text(node);
                self.string(head, TextOf::Place(node), facts)?;
            }
            // An item that cannot be judged does not pass.
            _ if node.is_item() => return Err(Fault::NotAnObject),
            _ if node.is_items() && !null => return Err(Fault::NotItems),
            (Shape::Number, 0 | 1) => return Ok(Some(Mark::Remaining { token: head.length })),
            (shape, major) => {
                match (shape, major, head.argument) {
                    _ if null => {}
                    (Shape::Flag, 7, Some(20 | 21)) => facts.flag(node, head.argument == Some(21)),
                    _ => facts.misfit(node),
                }
                if node.is_items() {
                    facts.no_items();
                }
                self.skip_item_first(head, facts)?;
            }
        }
        Ok(node.is_marked().then_some(Mark::Value { node, token: head.length }))
    }

    fn enter(&mut self, node: Node, head: Head) -> Result<(), Fault> {
        let left = head.items()?;
        *self.open.get_mut(self.level).ok_or(Fault::TooDeep)? =
            Level { node, left, value: None, has_break: left == UNTIL_BREAK };
        self.level += 1;
        Ok(())
    }

    /// Ends the innermost container if no items are left in it.
    fn close(&mut self, facts: &mut Facts) -> Option<Level> {
        let busy = self.payload > 0 || self.in_pieces.is_some() || !self.skipped.is_empty();
        let container = self.innermost().filter(|container| container.left == 0 && !busy)?;
        self.level -= 1;
        facts.end(container.node);
        Some(container)
    }

    fn end_by_break(&mut self) -> Result<(), Fault> {
        match self.innermost_mut() {
            Some(container) if container.left == UNTIL_BREAK && container.value.is_none() => {
                container.left = 0;
                Ok(())
            }
            _ => Err(Fault::Unexpected),
        }
    }

    /// Sets the place of the next value, whose name was read.
    fn named(&mut self, node: Node) {
        if let Some(container) = self.innermost_mut() {
            container.value = Some(node);
            container.count();
        }
    }

    fn string(&mut self, head: Head, target: TextOf, facts: &mut Facts) -> Result<(), Fault> {
        self.target = target;
        match head.argument {
            None => self.in_pieces = Some(head.major),
            Some(0) => self.end_string(facts),
            Some(length) => self.payload = length,
        }
        Ok(())
    }

    fn piece(&mut self, head: Head, facts: &mut Facts) -> Result<(), Fault> {
        match (head.major, head.argument) {
            (7, None) => {
                self.in_pieces = None;
                self.end_string(facts);
                Ok(())
            }
            (major, Some(length)) if self.in_pieces == Some(major) => {
                self.payload = length;
                Ok(())
            }
            _ => Err(Fault::Unexpected),
        }
    }

    fn payload<'c>(&mut self, rest: &'c [u8], facts: &mut Facts) -> &'c [u8] {
        let length = usize::try_from(self.payload).unwrap_or(usize::MAX);
        let (piece, rest) = rest.split_at_checked(length).unwrap_or((rest, &[]));
        self.payload -= piece.len() as u64;
        if self.target != TextOf::Nothing {
            facts.push(piece);
            if self.payload == 0 && self.in_pieces.is_none() {
                self.end_string(facts);
            }
        }
        rest
    }

    fn end_string(&mut self, facts: &mut Facts) {
        match std::mem::replace(&mut self.target, TextOf::Nothing) {
            TextOf::Nothing => {}
            TextOf::Name => {
                let node = self.innermost().map_or(Node::Skip, |container| container.node);
                self.named(facts.named(node));
            }
            TextOf::Place(node) => facts.end_text(node),
        }
    }

    fn innermost(&self) -> Option<Level> {
        self.open.get(self.level.checked_sub(1)?).copied()
    }

    fn innermost_mut(&mut self) -> Option<&mut Level> {
        self.open.get_mut(self.level.checked_sub(1)?)
    }

    /// Begins to skip an item at its first head.
    fn skip_item_first(&mut self, head: Head, facts: &Facts) -> Result<(), Fault> {
        self.skipped.push(Left::Items(1));
        self.skip_item(head, facts)
    }

    /// Skips one head inside skipped items.
    fn skip_item(&mut self, head: Head, facts: &Facts) -> Result<(), Fault> {
        let depth = self.skipped.len();
        let top = self.skipped.last_mut().ok_or(Fault::Unexpected)?;
        if head.is_break() {
            if matches!(top, Left::Items(_) | Left::Map { is_odd: true }) {
                return Err(Fault::Unexpected);
            }
            self.skipped.pop();
        } else {
            top.count(head)?;
            match (top, Left::within(head)?) {
                (_, None) if matches!(head.major, 2 | 3) => {
                    self.payload = head.argument.unwrap_or_default();
                }
                (_, None) => {}
                (Left::Items(left), Some(Left::Items(more))) if !facts.is_strict() => {
                    *left = sum(*left, more)?;
                }
                (_, Some(_)) if depth > if facts.is_strict() { MAX_DEPTH } else { MAX_OPEN } => {
                    return Err(Fault::TooDeep);
                }
                (_, Some(inner)) => self.skipped.push(inner),
            }
        }
        self.end_skipped();
        Ok(())
    }

    /// Leaves the levels in which no items are left.
    fn end_skipped(&mut self) {
        while self.skipped.last() == Some(&Left::Items(0)) {
            self.skipped.pop();
        }
    }

    /// The fast way to skip: items of definite length that are whole in the chunk. Stops at any
    /// other.
    fn skip<'c>(&mut self, mut rest: &'c [u8]) -> Result<&'c [u8], Fault> {
        let Some(Left::Items(top)) = self.skipped.last_mut() else {
            return Ok(rest);
        };
        let mut left = *top;
        while left > 0 {
            let Some(head) = Head::read(rest)? else {
                break;
            };
            let Some(argument) = head.argument else {
                break;
            };
            let mut length = head.length;
            let mut items = 0;
            match head.major {
                2 | 3 => {
                    length = match usize::try_from(argument) {
                        Ok(payload) if payload <= rest.len() - length => length + payload,
                        _ => break,
                    };
                }
                4 | 5 => items = head.items()?,
                6 => items = 1,
                _ => {}
            }
            left = sum(left - 1, items)?;
            rest = rest.get(length..).unwrap_or_default();
        }
        *top = left;
        self.end_skipped();
        Ok(rest)
    }
}

fn sum(left: u64, more: u64) -> Result<u64, Fault> {
    left.checked_add(more).filter(|sum| *sum < MAX_ITEMS).ok_or(Fault::Length)
}

impl Left {
    /// The items in one; `None` if it holds no others.
    fn within(head: Head) -> Result<Option<Self>, Fault> {
        Ok(Some(match (head.major, head.argument) {
            (4, None) => Self::Array,
            (5, None) => Self::Map { is_odd: false },
            (major @ (2 | 3), None) => Self::Pieces(major),
            (4 | 5, Some(_)) => Self::Items(head.items()?),
            (6, _) => Self::Items(1),
            _ => return Ok(None),
        }))
    }

    /// Counts an item that is no break.
    fn count(&mut self, head: Head) -> Result<(), Fault> {
        match self {
            Self::Items(left) => *left -= 1,
            Self::Array => {}
            Self::Map { is_odd } => *is_odd = !*is_odd,
            Self::Pieces(major) if *major == head.major && head.argument.is_some() => {}
            Self::Pieces(_) => return Err(Fault::Unexpected),
        }
        Ok(())
    }
}

impl Level {
    const NONE: Self = Self { node: Node::Skip, left: 0, value: None, has_break: false };

    fn count(&mut self) {
        if self.left != UNTIL_BREAK {
            self.left = self.left.saturating_sub(1);
        }
    }
}
