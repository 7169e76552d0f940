//! Tables for people: columns as wide as their widest cell.

use std::fmt::Write as _;

/// Writes the rows, each line behind `indent`.
pub(super) fn write<const N: usize>(text: &mut String, indent: &str, rows: &[[String; N]]) {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = indent.to_owned();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}
