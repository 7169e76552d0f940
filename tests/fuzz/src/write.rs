//! Events in every encoding, written in the many ways in which one can be written.

use ctrlmesh::wire::{Encoding, frames::MAGIC};

/// What an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) kind: &'static str,
    pub(crate) namespace: &'static str,
    pub(crate) of: (&'static str, &'static str),
    pub(crate) version: u64,
    /// How it is written, by its bits.
    pub(crate) style: u8,
}

impl Event {
    pub(crate) fn write(&self, encoding: Encoding) -> Vec<u8> {
        match encoding {
            Encoding::Protobuf => self.protobuf(),
            Encoding::Cbor => self.cbor(),
            Encoding::Json | Encoding::Yaml => self.json().into_bytes(),
        }
    }

    fn is(&self, bit: u8) -> bool {
        self.style >> bit & 1 != 0
    }

    /// Ends with a newline or not.
    fn json(&self) -> String {
        let gap = if self.is(0) { " \r\n\t" } else { "" };
        let text = |text: &str| {
            if self.is(1) {
                let escaped = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
                format!("\"{}\"", escaped.collect::<String>())
            } else {
                format!("\"{text}\"")
            }
        };
        let Self { kind, namespace, of: (api_version, of), version, .. } = self;
        let noise = r#""labels":{"namespace":"team-alpha"},"x":["}]\"\\{",-1.5e3,true,null,{}]"#;
        let meta = format!(
            "{{{gap}{noise},{}:{gap}{},\"resourceVersion\":\"{version}\"{gap}}}",
            text("namespace"),
            text(namespace),
        );
        let object = format!(
            "{{\"kind\":{},{gap}\"spec\":{{\"metadata\":{{\"namespace\":\"team-bravo\"}}}},\"apiVersion\"{gap}:{},{}:{meta}}}",
            text(of),
            text(api_version),
            text("metadata"),
        );
        let (first, second) =
            (format!("\"type\":{}", text(kind)), format!("{}:{object}", text("object")));
        let (first, second) = if self.is(2) { (second, first) } else { (first, second) };
        let end = if self.is(3) { "\n" } else { "" };
        format!("{{{first}{gap},{second}{gap}}}{end}")
    }

    fn cbor(&self) -> Vec<u8> {
        let text = |text: &str| self.cbor_text(text);
        let pair = |name: &str, value: Vec<u8>| [text(name), value].concat();
        let labels = self.cbor_map(&[pair("namespace", text("team-alpha"))]);
        // An array of an array, a float, a negative number, and a string in pieces.
        let noise =
            vec![0x84, 0x80, 0xfb, 1, 2, 3, 4, 5, 6, 7, 8, 0x38, 99, 0x5f, 0x41, b'x', 0x40, 0xff];
        let meta = self.cbor_map(&[
            pair("labels", labels),
            pair("x", noise),
            pair("namespace", text(self.namespace)),
            pair("resourceVersion", text(&self.version.to_string())),
        ]);
        let object = self.cbor_map(&[
            pair("apiVersion", text(self.of.0)),
            pair("metadata", meta),
            pair("kind", text(self.of.1)),
        ]);
        let mut fields = [pair("type", text(self.kind)), pair("object", object)];
        if self.is(2) {
            fields.reverse();
        }
        let tag: &[u8] = if self.is(3) { &[0xd9, 0xd9, 0xf7] } else { &[] };
        [tag, &self.cbor_map(&fields)].concat()
    }

    fn cbor_map(&self, fields: &[Vec<u8>]) -> Vec<u8> {
        let count = u8::try_from(fields.len()).expect("few");
        let (open, close): (u8, &[u8]) =
            if self.is(0) { (0xbf, &[0xff]) } else { (0xa0 | count, &[]) };
        [&[open], fields.concat().as_slice(), close].concat()
    }

    /// Bytes as the API server writes them, or text, as one or in pieces.
    fn cbor_text(&self, text: &str) -> Vec<u8> {
        let major = if self.is(1) { 0x60 } else { 0x40 };
        let whole = |text: &[u8]| {
            let length = u8::try_from(text.len()).expect("short");
            let head = if length < 24 { vec![major | length] } else { vec![major | 24, length] };
            [head, text.to_vec()].concat()
        };
        if !self.is(4) {
            return whole(text.as_bytes());
        }
        let pieces: Vec<u8> = text.as_bytes().chunks(5).flat_map(whole).collect();
        [&[major | 31], pieces.as_slice(), &[0xff]].concat()
    }

    fn protobuf(&self) -> Vec<u8> {
        // A number, eight bytes, four bytes and a message that no one knows.
        let noise = [
            vec![0x78, 0xff, 0xff, 0x03, 0x71, 1, 2, 3, 4, 5, 6, 7, 8, 0x6d, 1, 2, 3, 4],
            field(1000, b"\x0a\x03abc"),
        ]
        .concat();
        let mut meta = [
            field(3, self.namespace.as_bytes()),
            noise.clone(),
            field(6, self.version.to_string().as_bytes()),
        ];
        if self.is(0) {
            meta.reverse();
        }
        let object = [field(1, &meta.concat()), noise, field(2, b"\x1a\x0ateam-bravo")].concat();
        let mut types = [field(1, self.of.0.as_bytes()), field(2, self.of.1.as_bytes())];
        if self.is(1) {
            types.reverse();
        }
        let envelope =
            [MAGIC.to_vec(), field(1, &types.concat()), field(2, &object), field(4, b"")].concat();
        let mut event = [field(1, self.kind.as_bytes()), field(2, &field(1, &envelope))];
        if self.is(2) {
            event.reverse();
        }
        let event = event.concat();
        [u32::try_from(event.len()).expect("short").to_be_bytes().to_vec(), event].concat()
    }
}

/// A field of bytes.
fn field(number: usize, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for mut value in [number << 3 | 2, bytes.len()] {
        while value > 0x7f {
            out.push(u8::try_from(value & 0x7f).expect("seven bits") | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).expect("seven bits"));
    }
    [out, bytes.to_vec()].concat()
}
