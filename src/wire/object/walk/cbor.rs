//! CBOR (RFC 8949): a sequence of maps (RFC 8742). Kubernetes writes definite lengths and byte
//! strings; indefinite lengths, text strings and tags anywhere are read too, as by its own decoder.

use super::{
    facts::Facts,
    fault::Fault,
    place::{Node, Shape},
    step::{Mark, Step},
};

/// Most levels of containers that are parsed: event, object, rows, row, object, metadata,
/// annotations.
const LEVELS: usize = 7;
/// Most levels of indefinite length in skipped items. Definite ones inside each other need no
/// memory.
const MAX_OPEN: usize = 256;
/// Most items of a container: far more than a body can hold, far less than overflows a sum.
const MAX_ITEMS: u64 = 1 << 60;
/// Number of items that stands for an indefinite length.
const UNTIL_BREAK: u64 = u64::MAX;

#[derive(Debug)]
pub(in crate::wire) struct Cbor {
    root: Node,
    /// Open containers that are parsed, outermost first.
    open: [Container; LEVELS],
    level: usize,
    /// Skipped items: number left at each level; only levels around an [`UNTIL_BREAK`] are kept
    /// apart.
    skipped: Vec<u64>,
    /// Bytes left of the current string.
    payload: u64,
    /// The use of the current string.
    target: Target,
    /// Whether the string is in pieces, up to a break.
    in_pieces: bool,
    /// The first bytes of a head that is cut by the end of a chunk.
    cut: [u8; Head::MAX],
    cut_length: usize,
    /// Whether an event has begun.
    inside: bool,
}

#[derive(Debug, Clone, Copy)]
struct Container {
    node: Node,
    /// Items left; in a map names and values count separately.
    left: u64,
    /// The place of the next item, if that is a value in a map.
    value: Option<Node>,
    /// Whether it ends with a break.
    has_break: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Nothing,
    Name,
    Place(Node),
}

/// The head of an item.
#[derive(Debug, Clone, Copy)]
pub(in crate::wire) struct Head {
    pub(in crate::wire) major: u8,
    /// `None`: indefinite length, or a break.
    pub(in crate::wire) argument: Option<u64>,
    /// The number of the head's own bytes.
    pub(in crate::wire) length: usize,
}

impl Cbor {
    pub(super) const fn new(root: Node) -> Self {
        Self {
            root,
            open: [Container::NONE; LEVELS],
            level: 0,
            skipped: Vec::new(),
            payload: 0,
            target: Target::Nothing,
            in_pieces: false,
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
            if !self.skipped.is_empty() && self.cut_length == 0 {
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
            self.skip_item(head)?;
        } else if self.in_pieces {
            self.piece(head, facts)?;
        } else {
            match (head.major, self.innermost()) {
                // A tag changes nothing, but for bytes that stand for base64.
                (6, Some(Container { value: Some(Node::Skip), .. }) | None) => {}
                (6, _) => facts.odd(),
                (7, Some(_)) if head.is_break() => self.end_by_break()?,
                (5, None) => self.enter(self.root, head)?,
                (_, None) => return Err(Fault::NotAnObject),
                (_, Some(Container { node, value: None, .. })) if node.shape() == Shape::Map => {
                    self.name(head, facts)?;
                }
                (_, Some(Container { value: Some(place), .. })) => {
                    return self.value(place, head, facts);
                }
                (_, Some(Container { node, .. })) => return self.value(node.item(), head, facts),
            }
        }
        Ok(None)
    }

    fn name(&mut self, head: Head, facts: &mut Facts) -> Result<(), Fault> {
        facts.begin_name();
        if matches!(head.major, 2 | 3) {
            return self.string(head, Target::Name, facts);
        }
        // Only names that are text lead to a place.
        facts.odd();
        self.named(Node::Skip);
        self.skip_item_first(head)
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
            (Shape::Map, 5) => self.enter(node, head)?,
            (Shape::Array, 4) => {
                self.enter(node, head)?;
                return Ok(node.is_items().then_some(Mark::Open { token: head.length }));
            }
            (Shape::Text, 2 | 3) => {
                facts.begin_text(node);
                self.string(head, Target::Place(node), facts)?;
            }
            // An item that cannot be judged does not pass.
            _ if node.is_item() => return Err(Fault::NotAnObject),
            _ if node.is_items() && !null => return Err(Fault::NotItems),
            (Shape::Number, 0 | 1) => return Ok(Some(Mark::Remaining { token: head.length })),
            (shape, major) => {
                match (shape, major, head.argument) {
                    (Shape::Skip, ..) => {}
                    _ if null => {}
                    (Shape::Flag, 7, Some(20 | 21)) => facts.flag(node, head.argument == Some(21)),
                    _ => facts.misfit(node),
                }
                if node.is_items() {
                    facts.no_items();
                }
                self.skip_item_first(head)?;
            }
        }
        Ok(None)
    }

    fn enter(&mut self, node: Node, head: Head) -> Result<(), Fault> {
        let left = head.items()?;
        *self.open.get_mut(self.level).ok_or(Fault::TooDeep)? =
            Container { node, left, value: None, has_break: left == UNTIL_BREAK };
        self.level += 1;
        Ok(())
    }

    /// Ends the innermost container if no items are left in it.
    fn close(&mut self, facts: &mut Facts) -> Option<Container> {
        let busy = self.payload > 0 || self.in_pieces || !self.skipped.is_empty();
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

    fn string(&mut self, head: Head, target: Target, facts: &mut Facts) -> Result<(), Fault> {
        self.target = target;
        match head.argument {
            None => self.in_pieces = true,
            Some(0) => self.end_string(facts),
            Some(length) => self.payload = length,
        }
        Ok(())
    }

    fn piece(&mut self, head: Head, facts: &mut Facts) -> Result<(), Fault> {
        match (head.major, head.argument) {
            (7, None) => {
                self.in_pieces = false;
                self.end_string(facts);
                Ok(())
            }
            (2 | 3, Some(length)) => {
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
        if self.target != Target::Nothing {
            facts.push(piece);
            if self.payload == 0 && !self.in_pieces {
                self.end_string(facts);
            }
        }
        rest
    }

    fn end_string(&mut self, facts: &mut Facts) {
        match std::mem::replace(&mut self.target, Target::Nothing) {
            Target::Nothing => {}
            Target::Name => {
                let node = self.innermost().map_or(Node::Skip, |container| container.node);
                self.named(facts.named(node));
            }
            Target::Place(node) => facts.end_text(node),
        }
    }

    fn innermost(&self) -> Option<Container> {
        self.open.get(self.level.checked_sub(1)?).copied()
    }

    fn innermost_mut(&mut self) -> Option<&mut Container> {
        self.open.get_mut(self.level.checked_sub(1)?)
    }

    /// Begins to skip an item at its first head.
    fn skip_item_first(&mut self, head: Head) -> Result<(), Fault> {
        self.skipped.push(1);
        self.skip_item(head)
    }

    /// Skips one head inside skipped items.
    fn skip_item(&mut self, head: Head) -> Result<(), Fault> {
        let top = self.skipped.last_mut().ok_or(Fault::Unexpected)?;
        if head.is_break() {
            if *top != UNTIL_BREAK {
                return Err(Fault::Unexpected);
            }
            self.skipped.pop();
        } else if head.major != 6 {
            if *top != UNTIL_BREAK {
                *top -= 1;
            }
            match head.major {
                2 | 3 if head.argument.is_some() => self.payload = head.argument.unwrap_or(0),
                2..=5 => {
                    let items = head.items()?;
                    if items == UNTIL_BREAK || *top == UNTIL_BREAK {
                        if self.skipped.len() >= MAX_OPEN {
                            return Err(Fault::TooDeep);
                        }
                        self.skipped.push(items);
                    } else {
                        *top = top
                            .checked_add(items)
                            .filter(|sum| *sum < MAX_ITEMS)
                            .ok_or(Fault::Length)?;
                    }
                }
                _ => {}
            }
        }
        while self.skipped.last() == Some(&0) {
            self.skipped.pop();
        }
        Ok(())
    }

    /// The fast way to skip: items of definite length that are whole in the chunk. Stops at any
    /// other.
    fn skip<'c>(&mut self, mut rest: &'c [u8]) -> Result<&'c [u8], Fault> {
        let Some(top) = self.skipped.last_mut().filter(|top| **top != UNTIL_BREAK) else {
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
            left = (left - 1)
                .checked_add(items)
                .filter(|sum| *sum < MAX_ITEMS)
                .ok_or(Fault::Length)?;
            rest = rest.get(length..).unwrap_or_default();
        }
        *top = left;
        while self.skipped.last() == Some(&0) {
            self.skipped.pop();
        }
        Ok(rest)
    }
}

impl Container {
    const NONE: Self = Self { node: Node::Skip, left: 0, value: None, has_break: false };

    fn count(&mut self) {
        if self.left != UNTIL_BREAK {
            self.left = self.left.saturating_sub(1);
        }
    }
}

impl Head {
    /// Longest head: the initial byte and eight more.
    pub(in crate::wire) const MAX: usize = 9;

    /// `None` if the bytes end before the head does.
    #[inline]
    pub(in crate::wire) fn read(bytes: &[u8]) -> Result<Option<Self>, Fault> {
        let Some((initial, behind)) = bytes.split_first() else {
            return Ok(None);
        };
        let major = initial >> 5;
        let low = initial & 0x1f;
        let (argument, length) = match low {
            0..24 => (Some(u64::from(low)), 1),
            24 => (behind.first().map(|byte| u64::from(*byte)), 2),
            25 => (behind.first_chunk().map(|bytes| u64::from(u16::from_be_bytes(*bytes))), 3),
            26 => (behind.first_chunk().map(|bytes| u64::from(u32::from_be_bytes(*bytes))), 5),
            27 => (behind.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)), 9),
            31 if (2..=5).contains(&major) || major == 7 => {
                return Ok(Some(Self { major, argument: None, length: 1 }));
            }
            _ => return Err(Fault::Head),
        };
        Ok(argument.map(|argument| Self { major, argument: Some(argument), length }))
    }

    const fn is_break(&self) -> bool {
        self.major == 7 && self.argument.is_none()
    }

    /// Number of items in an array, map or string in pieces.
    fn items(&self) -> Result<u64, Fault> {
        let each = if self.major == 5 { 2 } else { 1 };
        match self.argument {
            None => Ok(UNTIL_BREAK),
            Some(count) if count < MAX_ITEMS / 2 => Ok(count * each),
            Some(_) => Err(Fault::Length),
        }
    }
}
