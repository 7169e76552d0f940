//! Names in the characters of DNS (RFC 1123), as the API server checks them. The limits of length
//! are the caller's: they differ by kind of name.

/// Whether `text` is lower-case letters, digits and `-`, with a letter or digit at both ends.
pub fn is_label(text: &str) -> bool {
    let end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(end)
        && bytes.last().is_some_and(end)
        && bytes.iter().all(|byte| end(byte) || *byte == b'-')
}

/// Whether `text` is labels with a dot between each two. A label in it may be of any length, as in
/// the API server's pattern of a subdomain.
pub fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_begin_and_end_with_a_letter_or_digit() {
        for label in ["a", "0", "a-b", "a--0", &"a".repeat(300)] {
            assert!(is_label(label) && is_subdomain(label), "{label:?}");
        }
        for other in ["", "-", "-a", "a-", "A", "a_b", "a b", "\u{e9}", "a\0"] {
            assert!(!is_label(other) && !is_subdomain(other), "{other:?}");
        }
    }

    #[test]
    fn subdomains_are_labels_with_dots_between_them() {
        for name in ["a.b", "apps.example.com", "0.1"] {
            assert!(is_subdomain(name) && !is_label(name), "{name:?}");
        }
        for other in [".", ".a", "a.", "a..b", "a.-b", "a-.b", "a.B"] {
            assert!(!is_subdomain(other), "{other:?}");
        }
    }
}
