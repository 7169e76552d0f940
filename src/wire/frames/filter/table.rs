//! Events whose object is a Table: `kubectl get --watch` reads them. Its readers are people, so
//! plain JSON decoding is fast enough.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::judge::{Judge, Verdict};
use crate::{
    media::Encoding,
    object::{Fault, Object, Reader, Wanted},
};

/// Filters the rows of Tables, event by event.
///
/// The API server describes the columns only in the first event. If that is dropped, the first kept
/// event gets the description.
#[derive(Debug)]
pub(super) struct Tables {
    reader: Reader,
    columns: Option<Box<RawValue>>,
    has_shown: bool,
}

#[derive(Deserialize)]
struct TableEvent<'a> {
    #[serde(rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Tables {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self { reader: Reader::new(Encoding::Json, wanted), columns: None, has_shown: false }
    }

    /// Appends the event without its dropped rows, and returns `true`; `false` if all of them are
    /// dropped. Rows are judged only if `is_change` shows that the event is about an object.
    pub(super) fn event(
        &mut self,
        event: &[u8],
        is_change: bool,
        judge: Judge<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        let TableEvent { kind, mut object } =
            serde_json::from_slice(event).map_err(|_| Fault::Unexpected)?;
        let all = rows(&object)?;
        let kept = if is_change { self.kept(&all, judge)? } else { all.clone() };
        let columns = object.get("columnDefinitions").filter(|columns| columns.get() != "null");
        if kept.is_empty() && is_change {
            if let (Some(columns), false) = (columns, self.has_shown) {
                self.columns = Some((*columns).to_owned());
            }
            return Ok(false);
        }
        let lacks_columns = columns.is_none() && !self.has_shown && self.columns.is_some();
        self.has_shown |= columns.is_some() || lacks_columns;
        if kept.len() == all.len() && !lacks_columns {
            out.extend_from_slice(event);
            return Ok(true);
        }
        if let (Some(columns), true) = (&self.columns, lacks_columns) {
            object.insert("columnDefinitions".into(), columns);
        }
        let rows = serde_json::value::to_raw_value(&kept).map_err(|_| Fault::Unexpected)?;
        object.insert("rows".into(), &rows);
        let whole = BTreeMap::from([
            ("type", serde_json::value::to_raw_value(&kind)),
            ("object", serde_json::value::to_raw_value(&object)),
        ]);
        write(whole, out)?;
        Ok(true)
    }

    fn kept<'a>(
        &mut self,
        rows: &[&'a RawValue],
        judge: Judge<'_>,
    ) -> Result<Vec<&'a RawValue>, Fault> {
        let mut kept = Vec::with_capacity(rows.len());
        for row in rows {
            let Row { object } = serde_json::from_str(row.get()).map_err(|_| Fault::Item)?;
            let object = self.reader.read(object.get().as_bytes()).map_err(|_| Fault::Item)?;
            // What a row stands for does not say what it is.
            match judge(&Object { kind: "", api_version: "", ..object }) {
                Verdict::Keep => kept.push(*row),
                Verdict::Drop => {}
                Verdict::Unknown => return Err(Fault::Item),
            }
        }
        Ok(kept)
    }
}

fn write(
    whole: BTreeMap<&str, serde_json::Result<Box<RawValue>>>,
    out: &mut Vec<u8>,
) -> Result<(), Fault> {
    let whole: Result<BTreeMap<_, _>, _> =
        whole.into_iter().map(|(name, value)| value.map(|value| (name, value))).collect();
    let written = whole.and_then(|whole| serde_json::to_writer(&mut *out, &whole));
    written.map_err(|_| Fault::Unexpected)?;
    out.push(b'\n');
    Ok(())
}

fn rows<'a>(table: &BTreeMap<Cow<'a, str>, &'a RawValue>) -> Result<Vec<&'a RawValue>, Fault> {
    let Some(rows) = table.get("rows") else { return Ok(Vec::new()) };
    let rows: Option<Vec<&RawValue>> =
        serde_json::from_str(rows.get()).map_err(|_| Fault::NotItems)?;
    Ok(rows.unwrap_or_default())
}
