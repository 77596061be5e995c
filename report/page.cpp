#include "report/page.h"

#include <string_view>

#include "base/error.h"
#include "report/page_parts.h"
#include "report/report_data.h"

namespace zerorun {
namespace {

// The policy lets the browser load nothing, whatever a log has in it.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Run report</title>
<link rel="icon" href="data:,">
)";

std::string element(const std::string& name, std::string_view attributes, std::string_view content) {
  std::string text = "<" + name;
  text.append(attributes).append(">").append(content).append("</" + name + ">\n");
  return text;
}

}  // namespace

std::string report_page(const std::vector<std::filesystem::path>& folders) {
  if (kDygraphsScript.empty() || kDygraphsStyle.empty() || kSynchronizerScript.empty() ||
      kDygraphsLicence.empty()) {
    throw UserError(
        "this zerorun was built without dygraphs, which draws reports: install Debian's package "
        "libjs-dygraphs, or give CMake -DZERORUN_DYGRAPHS=FOLDER and -DZERORUN_DYGRAPHS_LICENCE=FILE, and "
        "build again");
  }
  std::string page(kHead);
  page += element("style", "", kDygraphsStyle) + element("style", "", kPageStyle) + "</head>\n<body>\n";
  page += element("noscript", "", "This page draws its figures with JavaScript, which is switched off here.");
  page += element("main", " id=\"page\"", "");
  page += element("script", " type=\"application/json\" id=\"data\"", report_data(folders));
  page += element("script", " type=\"text/plain\" id=\"licence\"", kDygraphsLicence);
  page += element("script", "", kDygraphsScript) + element("script", "", kSynchronizerScript);
  page += element("script", "", kPageScript);
  return page + "</body>\n</html>\n";
}

}  // namespace zerorun
