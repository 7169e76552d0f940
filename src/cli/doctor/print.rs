//! Findings as text for people, and as JSON for programs.

use serde::Serialize;

use super::finding::{Finding, Severity};

/// The widest subject that others are aligned with.
const SUBJECT: usize = 56;

/// The findings as text: a line for each, its fix below, and how many there are.
pub fn text(findings: &[Finding]) -> String {
    let width = |finding: &Finding| finding.subject.chars().count();
    let widest = findings.iter().map(width).filter(|width| *width <= SUBJECT).max();
    let subjects = widest.unwrap_or_default();
    let mut text = String::new();
    for Finding { check, severity, subject, says, fix } in findings {
        let severity = severity.to_string();
        let head = format!("{severity:<7}  {}  {subject:<subjects$}", check.id());
        text.push_str(&format!("{head}  {says}\n"));
        if let Some(fix) = fix {
            text.push_str(&format!("{:1$}  fix: {fix}\n", "", "warning  D00".len()));
        }
    }
    text.push_str(&format!("{}\n", summary(findings)));
    text
}

/// The findings as a JSON array.
pub fn json(findings: &[Finding]) -> Result<String, serde_json::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        id: &'a str,
        severity: Severity,
        subject: &'a str,
        says: &'a str,
        fix: Option<&'a str>,
    }
    let rows: Vec<_> = findings
        .iter()
        .map(|Finding { check, severity, subject, says, fix }| Row {
            id: check.id(),
            severity: *severity,
            subject,
            says,
            fix: fix.as_deref(),
        })
        .collect();
    serde_json::to_string_pretty(&rows).map(|text| format!("{text}\n"))
}

fn summary(findings: &[Finding]) -> String {
    let count = |wanted| findings.iter().filter(|finding| finding.severity == wanted).count();
    let counted = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    format!(
        "{}, {}, {} ok",
        counted(count(Severity::Error), "error"),
        counted(count(Severity::Warning), "warning"),
        count(Severity::Ok)
    )
}
