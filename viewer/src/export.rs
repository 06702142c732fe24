//! Files of what is shown.

use std::path::Path;

use egui::Context;
use store::Record;

/// Writes a text; says where it went.
///
/// # Errors
/// In words: why not.
pub fn text(dir: &Path, name: &str, text: &str) -> Result<String, String> {
    write(&dir.join(name), text.as_bytes())
}

/// Writes bytes; says where they went.
///
/// # Errors
/// In words: why not.
pub fn bytes(dir: &Path, name: &str, bytes: &[u8]) -> Result<String, String> {
    write(&dir.join(name), bytes)
}

/// Writes the record of a run; says where it went.
///
/// # Errors
/// In words: why not.
pub fn record(dir: &Path, title: &str, record: &Record) -> Result<String, String> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    store::write(&mut bytes, record).map_err(|e| e.to_string())?;
    let name = format!("{}.{}", title.replace(['/', ' '], "-"), store::EXTENSION);
    write(&dir.join(name), &bytes.into_inner())
}

#[cfg(not(target_arch = "wasm32"))]
fn write(path: &Path, bytes: &[u8]) -> Result<String, String> {
    use std::io::Write as _;
    files::write(path, |out| out.write_all(bytes)).map_err(|e| e.to_string())?;
    Ok(format!("written: {}", path.display()))
}

/// A page has no folder: the browser puts the file where it puts downloads.
#[cfg(target_arch = "wasm32")]
fn write(path: &Path, bytes: &[u8]) -> Result<String, String> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    crate::page::download(&name, bytes)
        .map_err(|e| format!("the browser takes no download: {e:?}"))?;
    Ok(format!("downloaded: {name}"))
}

/// Writes a picture of the window when the next frame is done.
pub fn png(ctx: &Context, path: &Path) {
    let path = path.to_owned();
    ctx.request_screenshot(move |image| {
        // Nobody is there to be told; the file is there or not.
        let _ = png_bytes(&image).map(|bytes| write(&path, &bytes));
    });
}

/// A picture as the bytes of a PNG file.
///
/// # Errors
/// Where the picture is empty.
pub fn png_bytes(image: &egui::ColorImage) -> Result<Vec<u8>, png::EncodingError> {
    let [width, height] = image.size;
    let rgb: Vec<u8> = image
        .pixels
        .iter()
        .flat_map(|p| [p.r(), p.g(), p.b()])
        .collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    encoder.write_header()?.write_image_data(&rgb)?;
    Ok(bytes)
}
