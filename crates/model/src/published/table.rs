//! Published numbers in the crate's data files: comma-separated, with a line that names the source and a line of column
//! names.

/// Returns the rows of a table, with each field as text.
pub(super) fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().skip(2).filter(|line| !line.is_empty());
    lines.map(|line| line.split(',').collect())
}

/// Returns the rows as numbers; fields that are not numbers are NaN.
pub(super) fn numbers(text: &'static str) -> Vec<Vec<f64>> {
    let number = |field: &str| field.parse().unwrap_or(f64::NAN);
    rows(text)
        .map(|row| row.into_iter().map(number).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_tables_have_all_rows_with_finite_numbers() {
        let pos = numbers(include_str!("../../data/pos.csv"));
        let flower = numbers(include_str!("../../data/flower.csv"));
        let moonroute: Vec<_> = rows(include_str!("../../data/moonroute.csv")).collect();
        assert_eq!((pos.len(), flower.len(), moonroute.len()), (140, 24, 130));
        assert!(
            pos.iter()
                .chain(&flower)
                .flatten()
                .all(|number| number.is_finite())
        );
    }
}
