//! Names of instance types with `*` for any text.

/// Whether `name` is what `pattern` allows: `*` stands for any text.
pub fn allows(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(head) else {
        return false;
    };
    tail.is_empty()
        || (0..=rest.len()).any(|i| rest.is_char_boundary(i) && allows(tail, &rest[i..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stand_for_names() {
        assert!(
            allows("g5.*", "g5.2xlarge")
                && allows("*", "x")
                && allows("p5.48xlarge", "p5.48xlarge")
        );
        assert!(allows("*.48xlarge", "p5.48xlarge") && allows("p*n.*", "p5en.48xlarge"));
        assert!(!allows("g5.*", "g6.2xlarge") && !allows("*.12xlarge", "p5.48xlarge"));
    }
}
