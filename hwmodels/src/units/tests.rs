//! What is read and printed.

use proptest::prelude::*;

use super::*;

fn secs(text: &str) -> f64 {
    text.parse::<Secs>().unwrap().secs()
}

#[test]
fn values_are_read_in_every_spelling() {
    assert_eq!("80 GiB".parse::<ByteSize>().unwrap().bytes(), 80 << 30);
    assert_eq!("24 GB".parse::<ByteSize>().unwrap().bytes(), 24_000_000_000);
    assert_eq!("512MiB".parse::<ByteSize>().unwrap().bytes(), 512 << 20);
    assert_eq!("1_000 B".parse::<ByteSize>().unwrap().bytes(), 1000);
    assert_eq!(secs("250 ms"), 0.25);
    assert_eq!(secs("3 us"), 3e-6);
    assert_eq!(secs("5 min"), 300.0);
    assert_eq!(secs("1 h"), 3600.0);
    assert_eq!(secs("1.5e3 ms"), 1.5);
    assert_eq!("60 req/min".parse::<PerSec>().unwrap().per_sec(), 1.0);
    assert_eq!("2.5 req/s".parse::<PerSec>().unwrap().per_sec(), 2.5);
    assert_eq!(
        "100 Gb/s".parse::<BytesPerSec>().unwrap().bytes_per_sec(),
        12.5e9
    );
    assert_eq!(
        "600 GB/s".parse::<BytesPerSec>().unwrap().bytes_per_sec(),
        600e9
    );
    assert_eq!(
        "989 TFLOP/s".parse::<FlopsPerSec>().unwrap().per_sec(),
        989e12
    );
    assert_eq!(
        "$1.212/h".parse::<UsdPerHour>().unwrap().usd_per_hour(),
        1.212
    );
    assert_eq!(
        "1.212 USD/h".parse::<UsdPerHour>().unwrap().usd_per_hour(),
        1.212
    );
    assert_eq!("$0.60".parse::<Usd>().unwrap().usd(), 0.6);
    assert_eq!("90 %".parse::<Ratio>().unwrap().get(), 0.9);
    assert_eq!("0.9".parse::<Ratio>().unwrap().get(), 0.9);
}

#[test]
fn a_bare_number_is_refused_and_the_message_shows_a_right_form() {
    let e = "80".parse::<ByteSize>().unwrap_err().to_string();
    assert!(e.contains("write \"80 GiB\" instead of 80"), "{e}");
    let e = serde_json::from_str::<Secs>("250").unwrap_err().to_string();
    assert!(e.contains("write \"250 s\" instead of 250"), "{e}");
}

#[test]
fn a_bare_rate_is_one_of_requests_per_second() {
    let rate = PerSec::new(2.5).unwrap();
    assert_eq!(serde_json::from_str::<PerSec>("2.5").unwrap(), rate);
    assert_eq!("2.5".parse::<PerSec>().unwrap(), rate);
    assert_eq!("2.5 rps".parse::<PerSec>().unwrap(), rate);
    assert_eq!(rate.to_string(), "2.5 req/s");
    for wrong in ["-1", "fast", "2.5 parsec"] {
        assert!(wrong.parse::<PerSec>().is_err(), "{wrong}");
    }
}

#[test]
fn a_wrong_unit_is_refused_with_the_known_ones() {
    let e = "80 parsec".parse::<ByteSize>().unwrap_err().to_string();
    assert!(e.contains("`parsec`") && e.contains("GiB"), "{e}");
    assert!("10 GB".parse::<Secs>().is_err());
    assert!("10 Gb".parse::<ByteSize>().is_err());
    assert!("1 MS".parse::<Secs>().is_err());
}

#[test]
fn nan_infinite_negative_and_overflowing_values_are_refused() {
    for text in [
        "nan s", "inf s", "-1 s", "-0 s", "1e999 s", "1e308 h", "", " ", "s", "--1 s", "1..2 s",
        "1e s", "٣ s",
    ] {
        assert!(text.parse::<Secs>().is_err(), "{text}");
    }
    for text in ["-1 B", "1e30 GiB", "NaN GiB"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
    for text in ["1.1", "-0.1", "101 %", "nan", "50 s"] {
        assert!(text.parse::<Ratio>().is_err(), "{text}");
    }
    assert!(Secs::new(f64::NAN).is_err());
    assert!(Secs::new(-1.0).is_err());
    assert!(Ratio::new(f64::INFINITY).is_err());
}

#[test]
fn figures_for_people_are_short_and_have_a_unit() {
    let rate = |v: f64| PerSec::new(v).unwrap();
    assert_eq!(rate(8_969.877_075_897_08 / 3600.0).human(), "2.492 req/s");
    assert_eq!(rate(2.5).human(), "2.5 req/s");
    assert_eq!(rate(1.0 / 3600.0).human(), "1 req/h");
    let secs = |v: f64| Secs::new(v).unwrap();
    assert_eq!(secs(30.000000000000004).human(), "30 s");
    assert_eq!(secs(1800.0).human(), "30 min");
    assert_eq!(secs(954.312_345).human(), "954.3 s");
    assert_eq!(secs(0.081_234_5).human(), "81.23 ms");
    assert_eq!(secs(0.0).human(), "0 s");
    assert_eq!(FlopsPerSec::new(989e12).unwrap().human(), "989 TFLOP/s");
    assert_eq!(
        FlopsPerSec::new(989_412_345_678_901.0).unwrap().human(),
        "989.4 TFLOP/s"
    );
    assert_eq!(significant(-1.234_56), "-1.235");
}

#[test]
fn a_value_that_is_long_in_every_unit_is_printed_in_the_base_unit() {
    let rate = PerSec::new(8_969.877_075_897_08 / 3600.0).unwrap();
    assert!(rate.to_string().ends_with(" req/s"), "{rate}");
    assert_eq!(rate.to_string().parse::<PerSec>().unwrap(), rate);
}

#[test]
fn values_print_in_the_unit_people_would_write() {
    for text in ["80 GiB", "24 GB", "512 MiB", "22888 MiB", "0 B"] {
        let printed = text.parse::<ByteSize>().unwrap().to_string();
        if text == "0 B" {
            assert_eq!(printed.parse::<ByteSize>().unwrap().bytes(), 0);
        } else {
            assert_eq!(printed, text);
        }
    }
    for text in ["250 ms", "2 s", "5 min", "1 h", "3 us", "2.5 s"] {
        assert_eq!(text.parse::<Secs>().unwrap().to_string(), text);
    }
    assert_eq!(
        "2.5 req/s".parse::<PerSec>().unwrap().to_string(),
        "2.5 req/s"
    );
    assert_eq!("90 %".parse::<Ratio>().unwrap().to_string(), "90 %");
    assert_eq!(ByteSize::new(13_476_838_912).human(), "12.55 GiB");
}

proptest! {
    #[test]
    fn what_is_printed_reads_back_to_the_same_value(v in 0.0f64..1e15, b in 0u64..(1 << 53)) {
        let s = Secs::new(v).unwrap();
        prop_assert_eq!(s.to_string().parse::<Secs>().unwrap(), s);
        let r = BytesPerSec::new(v).unwrap();
        prop_assert_eq!(r.to_string().parse::<BytesPerSec>().unwrap(), r);
        let p = PerSec::new(v).unwrap();
        prop_assert_eq!(p.to_string().parse::<PerSec>().unwrap(), p);
        let b = ByteSize::new(b);
        prop_assert_eq!(b.to_string().parse::<ByteSize>().unwrap(), b);
        let q = Ratio::new(v / 1e15).unwrap();
        prop_assert_eq!(q.to_string().parse::<Ratio>().unwrap(), q);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC*") {
        let _ = text.parse::<Secs>();
        let _ = text.parse::<ByteSize>();
        let _ = text.parse::<UsdPerHour>();
        let _ = text.parse::<Ratio>();
    }
}
