//! The smallest whole number for which something holds that holds for all larger ones.

/// Searches `least` to `most` outward from `hint`, then halves the bracket; gives the number and what its look found. None where it does not hold at
/// `most`.
///
/// # Errors
/// Those of `look`, which says whether it holds, and what it found.
pub fn smallest<T, E>(
    hint: u32,
    least: u32,
    most: u32,
    mut look: impl FnMut(u32) -> Result<(bool, T), E>,
) -> Result<Option<(u32, T)>, E> {
    if least > most || least == 0 {
        return Ok(None);
    }
    let mut failing = least - 1;
    let mut holding: Option<(u32, T)> = None;
    let mut n = hint.clamp(least, most);
    let mut stride = 1;
    loop {
        let (holds, found) = look(n)?;
        if holds {
            holding = Some((n, found));
            if failing >= least || n == least {
                break;
            }
            n = n.saturating_sub(stride).max(least);
        } else {
            failing = n;
            if holding.is_some() {
                break;
            }
            if n == most {
                return Ok(None);
            }
            n = n.saturating_add(stride).min(most);
        }
        stride *= 2;
    }
    while let Some((high, _)) = &holding {
        let high = *high;
        if failing + 1 >= high {
            break;
        }
        let middle = failing + (high - failing) / 2;
        let (holds, found) = look(middle)?;
        if holds {
            holding = Some((middle, found));
        } else {
            failing = middle;
        }
    }
    Ok(holding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn it_is_found_from_any_hint_in_few_looks() {
        for least in [1, 3] {
            for limit in least..=70 {
                for hint in [1, 2, 30, 64, 100] {
                    let mut looks = 0;
                    let found = smallest(hint, least, 64, |n| {
                        looks += 1;
                        assert!((least..=64).contains(&n));
                        Ok::<_, Infallible>((n >= limit, n))
                    });
                    let expected = (limit <= 64).then_some((limit, limit));
                    assert_eq!(found.unwrap(), expected, "{least} {limit} {hint}");
                    assert!(looks <= 14, "{looks}");
                }
            }
        }
    }

    #[test]
    fn an_empty_range_has_none() {
        assert_eq!(
            smallest(1, 5, 4, |n| Ok::<_, Infallible>((true, n))).unwrap(),
            None
        );
    }
}
