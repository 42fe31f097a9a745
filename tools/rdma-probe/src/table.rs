//! Text in columns.

use crate::shown;
use std::fmt::{self, Display, Write};

/// Rows of cells, printed with each column as wide as its widest cell.
pub struct Table<const COLUMNS: usize> {
    rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// A table with its heading.
    pub fn new(heading: [&str; COLUMNS]) -> Self {
        Self { rows: vec![heading.map(str::to_owned)] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.map(|cell| shown::line(&cell).into_owned()));
    }
}

impl<const COLUMNS: usize> Display for Table<COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; COLUMNS] = std::array::from_fn(width);
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                write!(line, "{cell:width$}  ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The value, or a dash where there is none.
pub fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_clean() {
        let mut table = Table::new(["a", "bb", "c"]);
        table.row(["xxx".into(), "y".into(), String::new()]);
        assert_eq!(table.to_string(), "a    bb  c\nxxx  y\n");
    }

    /// A name of the kernel's cannot make lines of its own, nor columns out of place.
    #[test]
    fn a_cell_is_one_line() {
        let mut table = Table::new(["a", "b"]);
        table.row(["x\ny\u{1b}[1m".into(), "z".into()]);
        assert_eq!(table.to_string(), "a              b\nx\\ny\\u{1b}[1m  z\n");
    }
}
