//! Columns of text as Go's `text/tabwriter` aligns them: a column is a run of lines that have a cell there, and the last cell of
//! a line belongs to none.

/// Lines of cells between tabs, to be aligned.
#[derive(Debug, Default)]
pub struct TabWriter {
    lines: Vec<Vec<String>>,
    min_width: usize,
    padding: usize,
    /// Widths that columns had before, kept for those who print line after line.
    remembered: Option<Vec<usize>>,
}

impl TabWriter {
    /// The tables of `get`.
    pub fn table() -> Self {
        Self { min_width: 6, padding: 3, ..Self::default() }
    }

    /// The tables of `get --watch`, whose columns never shrink.
    pub fn remembering() -> Self {
        Self { remembered: Some(Vec::new()), ..Self::table() }
    }

    /// One line, its cells separated by tabs.
    pub fn line(&mut self, text: &str) {
        self.lines.push(text.split('\t').map(str::to_owned).collect());
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The aligned text; the writer is empty again.
    pub fn finish(&mut self) -> String {
        let lines = std::mem::take(&mut self.lines);
        let mut out = String::new();
        let mut widths = Vec::new();
        self.format(&lines, &mut widths, &mut out);
        out
    }

    fn format(&mut self, lines: &[Vec<String>], widths: &mut Vec<usize>, out: &mut String) {
        let column = widths.len();
        let mut index = 0;
        let mut plain = 0;
        while index < lines.len() {
            if column + 1 >= lines[index].len() {
                index += 1;
                continue;
            }
            write(&lines[plain..index], widths, out);
            let start = index;
            let mut width = self.min_width;
            while index < lines.len() && column + 1 < lines[index].len() {
                width = width.max(lines[index][column].chars().count() + self.padding);
                index += 1;
            }
            if let Some(known) = &mut self.remembered {
                if known.len() <= column {
                    known.resize(column + 1, 0);
                }
                width = width.max(known[column]);
                known[column] = width;
            }
            widths.push(width);
            self.format(&lines[start..index], widths, out);
            widths.pop();
            plain = index;
        }
        write(&lines[plain..], widths, out);
    }
}

fn write(lines: &[Vec<String>], widths: &[usize], out: &mut String) {
    for line in lines {
        for (index, cell) in line.iter().enumerate() {
            out.push_str(cell);
            if let Some(width) = widths.get(index)
                && index + 1 < line.len()
            {
                out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TabWriter::table();
        table.line("NAME\tAGE");
        table.line("a-long-name\t5s");
        assert_eq!(table.finish(), "NAME          AGE\na-long-name   5s\n");
    }

    #[test]
    fn a_line_without_a_cell_ends_its_column() {
        let mut table = TabWriter { padding: 2, ..TabWriter::default() };
        ["Name:\tx", "Labels:\t<none>", "no tab", "A:\tb"].into_iter().for_each(|line| table.line(line));
        assert_eq!(table.finish(), "Name:    x\nLabels:  <none>\nno tab\nA:  b\n");
    }

    #[test]
    fn widths_are_remembered() {
        let mut table = TabWriter::remembering();
        table.line("a-long-name\t5s");
        assert_eq!(table.finish(), "a-long-name   5s\n");
        table.line("b\t5s");
        assert_eq!(table.finish(), "b             5s\n");
    }
}
