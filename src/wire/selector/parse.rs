//! The text form of a label selector, token for token as apimachinery's lexer and parser, with
//! their oddities: a NUL ends a token or the whole text, `in` and `notin` are keys and values too,
//! `a=` and `a in ()` compare with the empty value.

use super::requirement::Requirement;
use super::syntax::{LabelError, Op, SelectorError, check_key};

pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { lexer: Lexer { text, position: 0 }, peeked: None };
    let mut requirements = Vec::new();
    if parser.peek().kind == Kind::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        let next = parser.next();
        match next.kind {
            Kind::End => return Ok(requirements),
            Kind::Comma => {}
            _ => return Err(next.unexpected("',' or the end")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Less,
    NotEquals,
    Open,
    /// Any other word, also `in` and `notin`: they are operators only behind a key.
    Word,
}

#[derive(Debug, Clone, Copy)]
struct SelectorToken<'a> {
    kind: Kind,
    text: &'a str,
    at: usize,
}

impl SelectorToken<'_> {
    fn unexpected(&self, expected: &str) -> SelectorError {
        let found = if self.kind == Kind::End { "the end" } else { self.text };
        SelectorError { position: self.at, reason: format!("found {found:?}, expected {expected}") }
    }

    fn invalid(&self, error: &LabelError) -> SelectorError {
        SelectorError { position: self.at, reason: error.to_string() }
    }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    peeked: Option<SelectorToken<'a>>,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> SelectorToken<'a> {
        let lexer = &mut self.lexer;
        *self.peeked.get_or_insert_with(|| lexer.token())
    }

    fn next(&mut self) -> SelectorToken<'a> {
        self.peeked.take().unwrap_or_else(|| self.lexer.token())
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let mut key = self.next();
        let negated = key.kind == Kind::Not;
        if negated {
            key = self.next();
        }
        if key.kind != Kind::Word {
            return Err(key.unexpected(if negated { "a key" } else { "'!' or a key" }));
        }
        check_key(key.text).map_err(|error| key.invalid(&error))?;
        let (op, values) = if negated {
            (Op::DoesNotExist, Vec::new())
        } else if matches!(self.peek().kind, Kind::End | Kind::Comma) {
            (Op::Exists, Vec::new())
        } else {
            self.comparison()?
        };
        Requirement::new(key.text, op, values).map_err(|error| key.invalid(&error))
    }

    fn comparison(&mut self) -> Result<(Op, Vec<String>), SelectorError> {
        let operator = self.next();
        let op = match (operator.kind, operator.text) {
            (Kind::Equals | Kind::DoubleEquals, _) | (Kind::Word, "in") => Op::In,
            (Kind::NotEquals, _) | (Kind::Word, "notin") => Op::NotIn,
            (Kind::Greater, _) => Op::GreaterThan,
            (Kind::Less, _) => Op::LessThan,
            _ => return Err(operator.unexpected("one of = == != in notin < >")),
        };
        let values = if operator.kind == Kind::Word { self.set()? } else { vec![self.exact()?] };
        Ok((op, values))
    }

    fn exact(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek().kind, Kind::End | Kind::Comma) {
            return Ok(String::new());
        }
        let value = self.next();
        if value.kind == Kind::Word {
            Ok(value.text.to_owned())
        } else {
            Err(value.unexpected("a value"))
        }
    }

    /// Parses a set, `( [VALUE] [, [VALUE]]… )`: an empty place is the empty value.
    fn set(&mut self) -> Result<Vec<String>, SelectorError> {
        let open = self.next();
        if open.kind != Kind::Open {
            return Err(open.unexpected("'('"));
        }
        let mut values = Vec::new();
        loop {
            let place = self.peek();
            match place.kind {
                Kind::Word => values.push(self.next().text.to_owned()),
                Kind::Comma | Kind::Close => values.push(String::new()),
                _ => return Err(place.unexpected("a value, ',' or ')'")),
            }
            let next = self.next();
            match next.kind {
                Kind::Comma => {}
                Kind::Close => return Ok(values),
                _ => return Err(next.unexpected("',' or ')'")),
            }
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Lexer<'a> {
    fn token(&mut self) -> SelectorToken<'a> {
        while self.byte().is_some_and(is_space) {
            self.position += 1;
        }
        let at = self.position;
        let kind = match self.byte() {
            None | Some(0) => {
                self.position = self.text.len();
                return SelectorToken { kind: Kind::End, text: "", at };
            }
            Some(byte) if is_special(byte) => self.special(),
            Some(_) => self.word(),
        };
        let text = self.text.get(at..self.position).unwrap_or_default();
        // A NUL behind a token is consumed with it.
        if self.byte() == Some(0) {
            self.position += 1;
        }
        SelectorToken { kind, text, at }
    }

    fn special(&mut self) -> Kind {
        let first = self.byte();
        self.position += 1;
        let mut doubled = |kind, single| {
            if self.byte() == Some(b'=') {
                self.position += 1;
                kind
            } else {
                single
            }
        };
        match first {
            Some(b'=') => doubled(Kind::DoubleEquals, Kind::Equals),
            Some(b'!') => doubled(Kind::NotEquals, Kind::Not),
            Some(b'>') => Kind::Greater,
            Some(b'<') => Kind::Less,
            Some(b'(') => Kind::Open,
            Some(b')') => Kind::Close,
            _ => Kind::Comma,
        }
    }

    fn word(&mut self) -> Kind {
        while self.byte().is_some_and(|byte| byte != 0 && !is_space(byte) && !is_special(byte)) {
            self.position += 1;
        }
        Kind::Word
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

const fn is_special(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}
