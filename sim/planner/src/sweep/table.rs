//! The table of a sweep as Parquet, for whoever reads it with DuckDB, pandas or Polars.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::result::SweepResult;
use crate::Error;

impl SweepResult {
    /// The table as a Parquet file with the columns of [`SweepResult::csv`]: `point` and `seed` are 64-bit integers, the values of keys text, figures
    /// doubles, null where nothing was measured. The same table gives the same bytes.
    ///
    /// # Errors
    /// Two columns of one name.
    pub fn parquet(&self) -> Result<Vec<u8>, Error> {
        self.write_parquet()
            .map_err(|e| Error::Failed(format!("results.parquet: {e}")))
    }

    fn write_parquet(&self) -> Result<Vec<u8>, ParquetError> {
        let mut fields = vec![whole("point")?, whole("seed")?];
        for key in &self.keys {
            fields.push(text(key, Repetition::REQUIRED)?);
        }
        for figure in &self.figures {
            let of = Type::primitive_type_builder(figure, Physical::DOUBLE);
            fields.push(Arc::new(of.with_repetition(Repetition::OPTIONAL).build()?));
        }
        fields.push(text("fingerprint", Repetition::REQUIRED)?);
        fields.push(text("error", Repetition::OPTIONAL)?);
        let schema = Type::group_type_builder("sweep")
            .with_fields(fields)
            .build()?;
        let made_by = format!("servetwin {}", env!("CARGO_PKG_VERSION"));
        let properties = WriterProperties::builder().set_created_by(made_by).build();
        let mut file =
            SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
        let mut rows = file.next_row_group()?;
        let of = |f: fn(&super::result::SweepRun) -> u64| -> Vec<i64> {
            self.runs.iter().map(|r| f(r) as i64).collect()
        };
        column::<Int64Type>(&mut rows, &of(|r| r.point), None)?;
        column::<Int64Type>(&mut rows, &of(|r| r.seed), None)?;
        for i in 0..self.keys.len() {
            let values: Vec<ByteArray> = (self.runs.iter())
                .map(|r| bytes(r.values.get(i).map_or("", String::as_str)))
                .collect();
            column::<ByteArrayType>(&mut rows, &values, None)?;
        }
        for i in 0..self.figures.len() {
            let all: Vec<Option<f64>> = (self.runs.iter())
                .map(|r| r.figures.get(i).copied().flatten())
                .collect();
            let values: Vec<f64> = all.iter().flatten().copied().collect();
            column::<DoubleType>(&mut rows, &values, Some(&levels(&all)))?;
        }
        let prints: Vec<ByteArray> = self.runs.iter().map(|r| bytes(&r.fingerprint)).collect();
        column::<ByteArrayType>(&mut rows, &prints, None)?;
        let all: Vec<Option<&String>> = self.runs.iter().map(|r| r.error.as_ref()).collect();
        let errors: Vec<ByteArray> = all.iter().flatten().map(|e| bytes(e)).collect();
        column::<ByteArrayType>(&mut rows, &errors, Some(&levels(&all)))?;
        rows.close()?;
        file.into_inner()
    }
}

fn bytes(text: &str) -> ByteArray {
    ByteArray::from(text.as_bytes().to_vec())
}

/// Which rows have a value: 1, or 0 for null.
fn levels<T>(all: &[Option<T>]) -> Vec<i16> {
    all.iter().map(|v| i16::from(v.is_some())).collect()
}

fn whole(name: &str) -> Result<Arc<Type>, ParquetError> {
    let of = Type::primitive_type_builder(name, Physical::INT64);
    Ok(Arc::new(of.with_repetition(Repetition::REQUIRED).build()?))
}

fn text(name: &str, repetition: Repetition) -> Result<Arc<Type>, ParquetError> {
    let of = Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
        .with_logical_type(Some(LogicalType::String))
        .with_repetition(repetition);
    Ok(Arc::new(of.build()?))
}

/// Writes the next column of `rows`.
fn column<T: DataType>(
    rows: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = rows.next_column()? else {
        return Err(ParquetError::General("a column too many".into()));
    };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}
