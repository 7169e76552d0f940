//! The head of an item in CBOR.

use super::fault::Fault;

/// Most items of a container: far more than a body can hold, far less than overflows a sum.
pub(super) const MAX_ITEMS: u64 = 1 << 60;
/// Number of items that stands for an indefinite length.
pub(super) const UNTIL_BREAK: u64 = u64::MAX;

/// The head of an item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) major: u8,
    /// The argument. `None` for an indefinite length, or a break.
    pub(crate) argument: Option<u64>,
    /// The head's own bytes.
    pub(crate) length: usize,
}

impl Head {
    /// Longest head: the initial byte and eight more.
    pub(crate) const MAX: usize = 9;

    /// Reads a head. `None` if the bytes end before it does.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, Fault> {
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

    pub(super) const fn is_break(&self) -> bool {
        self.major == 7 && self.argument.is_none()
    }

    /// Number of items in an array or map.
    pub(super) fn items(&self) -> Result<u64, Fault> {
        let each = if self.major == 5 { 2 } else { 1 };
        match self.argument {
            None => Ok(UNTIL_BREAK),
            Some(count) if count < MAX_ITEMS / 2 => Ok(count * each),
            Some(_) => Err(Fault::Length),
        }
    }
}
