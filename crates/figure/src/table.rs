//! Tables for terminals: at most as wide as the terminal. If a table is too wide, its least important columns are
//! omitted, and a line below it names them.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use std::io::IsTerminal;

/// Returns the number of columns of the terminal on standard output; `None` if it is no terminal.
pub fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    stdout.is_terminal().then_some(())?;
    let size = rustix::termios::tcgetwinsize(stdout).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Returns a table without lines between its cells, each column as wide as its content.
pub fn plain() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// Sets two spaces after each column and none before the first; columns from index `numbers_from` on are right-aligned.
/// The settings apply to the columns of the rows that the table already has.
pub fn set_columns(table: &mut Table, numbers_from: Option<usize>) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        if numbers_from.is_some_and(|first| column.index >= first) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Returns the table as lines without trailing spaces. If the table is wider than `width`, columns are omitted in the
/// order of `least_important` (index and name) until the table fits or the list is exhausted.
pub fn text(mut table: Table, least_important: &[(usize, &str)], width: Option<usize>) -> String {
    let mut left_out = Vec::new();
    let mut columns = least_important.iter();
    loop {
        let mut text = String::new();
        let mut widest = 0;
        for line in table.to_string().lines() {
            let line = line.trim_end();
            widest = widest.max(line.chars().count());
            text.push_str(line);
            text.push('\n');
        }
        let column = match width {
            Some(width) if widest > width => columns.next(),
            _ => None,
        };
        let Some((index, name)) = column else {
            if !left_out.is_empty() {
                text.push_str(&format!(
                    "(left out for want of width: {}; --json and the report have them)\n",
                    left_out.join(", ")
                ));
            }
            return text;
        };
        if let Some(column) = table.column_mut(*index) {
            column.set_constraint(ColumnConstraint::Hidden);
            left_out.push(*name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_tables_omit_the_least_important_columns() {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["device", "average", "deviation"]);
        table.add_row(["memif-idle", "12 us", "3 us"]);
        let order = [(2, "deviation"), (1, "average")];
        let wide = text(table.clone(), &order, None);
        assert!(wide.contains("deviation") && wide.lines().count() == 2);
        assert_eq!(text(table.clone(), &order, Some(80)), wide);
        let narrow = text(table.clone(), &order, Some(25));
        assert!(
            narrow.contains("average") && !narrow.contains("3 us"),
            "{narrow}"
        );
        assert!(narrow.ends_with("width: deviation; --json and the report have them)\n"));
        // A width of 3 is too small for every column, but the columns that are not in `order` are never omitted.
        let least = text(table, &order, Some(3));
        assert!(least.contains("memif-idle") && least.contains("deviation, average;"));
    }
}
