#include "tests/samples/programs_support.h"

#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

namespace zerorun::testing {

Outcome run(const TemporaryFolder& folder, const std::string& command) {
  const std::string out = folder / "stdout", err = folder / "stderr";
  const int status = std::system(("OMP_NUM_THREADS=1 " + command + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

std::string write_config(const TemporaryFolder& folder, int micro_batch, int accumulation,
                         const std::string& zero) {
  return folder.write("ds_config.json", R"({"train_micro_batch_size_per_gpu": )" +
                                            std::to_string(micro_batch) +
                                            R"(, "gradient_accumulation_steps": )" +
                                            std::to_string(accumulation) + R"(, "steps_per_print": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": )" +
                                            zero + "}");
}

std::string write_text(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; text.size() < 1000; ++i) text += "line " + std::to_string(i * i) + "\n";
  return folder.write("text", text.substr(0, 1000));
}

std::vector<std::map<std::string, double>> read_csv(const std::filesystem::path& file) {
  std::istringstream lines(read_file(file));
  std::string line, field;
  std::getline(lines, line);
  REQUIRE(line == "step,loss,grad_norm,lr,loss_scale,skipped");
  std::vector<std::map<std::string, double>> rows;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    auto& row = rows.emplace_back();
    for (const char* column : {"step", "loss", "grad_norm", "lr", "loss_scale", "skipped"}) {
      std::getline(fields, field, ',');
      row[column] = std::stod(field);
    }
  }
  return rows;
}

std::vector<double> column(const std::vector<std::map<std::string, double>>& rows, const std::string& name) {
  std::vector<double> values;
  for (const auto& row : rows) values.push_back(row.at(name));
  return values;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace zerorun::testing
