//! Cuts a byte stream into the data of its server-sent events.
//!
//! Takes what servers really write: `\n` and `\r\n`, with or without a space after the colon, comments, other fields, several
//! `data:` lines in one event, and bare JSON lines where a proxy stripped the framing.

/// Longest event that is taken [bytes]; more is no token stream.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// Splits a response that comes in pieces.
#[derive(Debug, Default)]
pub struct EventSplitter {
    /// Bytes of the line that is not complete yet.
    line: Vec<u8>,
    /// Data lines of the event that is not complete yet.
    data: Vec<u8>,
}

/// An event that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {MAX_EVENT_BYTES} bytes")]
pub struct EventTooLong;

impl EventSplitter {
    /// Takes in `bytes` and calls `event` with the data of each event that they complete.
    ///
    /// # Errors
    /// When an event does not end within bounds.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut event: impl FnMut(&[u8]),
    ) -> Result<(), EventTooLong> {
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            let (head, rest) = bytes.split_at(at);
            bytes = &rest[1..];
            if self.line.is_empty() {
                Self::line(&mut self.data, head, &mut event)?;
            } else {
                self.line.extend_from_slice(head);
                let line = std::mem::take(&mut self.line);
                Self::line(&mut self.data, &line, &mut event)?;
                self.line = line;
                self.line.clear();
            }
        }
        if self.line.len() + bytes.len() > MAX_EVENT_BYTES {
            return Err(EventTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// The stream is over: hands out what no empty line has ended.
    ///
    /// # Errors
    /// As [`EventSplitter::push`].
    pub fn finish(&mut self, mut event: impl FnMut(&[u8])) -> Result<(), EventTooLong> {
        let line = std::mem::take(&mut self.line);
        Self::line(&mut self.data, &line, &mut event)?;
        Self::line(&mut self.data, b"", &mut event)
    }

    fn line(
        data: &mut Vec<u8>,
        line: &[u8],
        event: &mut impl FnMut(&[u8]),
    ) -> Result<(), EventTooLong> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if !data.is_empty() {
                event(data);
                data.clear();
            }
        } else if let Some(value) = line.strip_prefix(b"data:") {
            if data.len() + value.len() > MAX_EVENT_BYTES {
                return Err(EventTooLong);
            }
            if !data.is_empty() {
                data.push(b'\n');
            }
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        } else if line.first() == Some(&b'{') {
            // A JSON object that is not framed as an event stands for itself.
            event(line);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let mut splitter = EventSplitter::default();
        let mut found = Vec::new();
        for p in pieces {
            splitter
                .push(p, |e| found.push(String::from_utf8_lossy(e).into_owned()))
                .unwrap();
        }
        splitter
            .finish(|e| found.push(String::from_utf8_lossy(e).into_owned()))
            .unwrap();
        found
    }

    #[test]
    fn events_are_cut_whatever_the_line_ends_and_fields() {
        assert_eq!(
            events(&[
                b": ping\n\nevent: x\nid: 3\ndata: {\"a\":1}\n\ndata:b\r\n\r\ndata: c\ndata: d\n\n"
            ]),
            ["{\"a\":1}", "b", "c\nd"]
        );
    }

    #[test]
    fn an_event_without_a_closing_line_and_bare_json_are_taken_too() {
        assert_eq!(events(&[b"data: [DONE]"]), ["[DONE]"]);
        assert_eq!(
            events(&[b"{\"a\":1}\n{\"b\":2}"]),
            ["{\"a\":1}", "{\"b\":2}"]
        );
    }

    #[test]
    fn a_line_without_end_is_refused_in_bounded_memory() {
        let mut splitter = EventSplitter::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..64).any(|_| splitter.push(&piece, |_| {}).is_err());
        assert!(refused && splitter.line.len() <= MAX_EVENT_BYTES);
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_makes_no_difference(cuts in prop::collection::vec(0usize..60, 0..6)) {
            let text: &[u8] = b"data: {\"t\":\"a\"}\r\n\r\n: c\ndata: x\ndata: y\n\ndata: [DONE]\n\n";
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(events(&pieces), events(&[text]));
        }
    }
}
