use crate::ResourceVersion;

#[test]
fn t32_positions_are_decimal_integers_of_128_bits() {
    use ResourceVersion::{At, Opaque, Unset, Zero};
    let max = u128::MAX.to_string();
    for (text, expected) in [
        ("", Unset),
        ("0", Zero),
        ("1", At(1)),
        ("18446744073709551616", At(1 << 64)),
        (max.as_str(), At(u128::MAX)),
        ("340282366920938463463374607431768211456", Opaque),
        ("1000000000000000000000000000000000000000", Opaque),
        ("00", Opaque),
        ("01", Opaque),
        ("+1", Opaque),
        ("-1", Opaque),
        ("1 ", Opaque),
        ("1/2", Opaque),
        ("1:", Opaque),
        ("x", Opaque),
    ] {
        let read = ResourceVersion::parse(text.as_bytes());
        assert_eq!(read, expected, "{text}");
        if read != Opaque {
            assert_eq!(read.to_string(), text);
        }
    }
    assert!(At(9).position() < At(10).position(), "compared as numbers");
}
