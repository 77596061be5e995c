// A scope in which every rank has all values of chosen parameters: for access that differs between ranks, and
// for raw access to the parameters' memory. A collective: all ranks open and close the same scopes. Used by
// the engine's thread.
//
//   {
//     zerorun::GatheredParameters scope(engine, {model->head->weight}, /*modifier_rank=*/0);
//     if (engine.communicator().rank() == 0) load_into(model->head->weight);
//   }  // all ranks now have what rank 0 wrote
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace zerorun {

/// Does what GatheredParameters does, for callers that cannot use a C++ scope, such as a Python `with` block.
class GatherScope {
 public:
  /// Opens the scope. Arguments and errors are those of GatheredParameters.
  GatherScope(Engine& engine, const std::vector<at::Tensor>& parameters, std::optional<int> modifier_rank);
  /// Closes the scope as an exception would, if it is still open: a scope that Python drops must not stay
  /// open.
  ~GatherScope();
  GatherScope(const GatherScope&) = delete;
  GatherScope& operator=(const GatherScope&) = delete;

  /// Closes the scope; does nothing if it is closed already. `unwinding`: an exception ended the scope. Then
  /// close() throws nothing, and the modifier rank's writes are not broadcast.
  void close(bool unwinding);

 private:
  /// A parameter to which the program has given other memory in the scope.
  struct Replaced {
    std::string name;
    at::Tensor own;    // the parameter's own memory, to which it has returned
    at::Tensor given;  // that of the program
  };

  /// What a parameter of the scope had when the scope was opened.
  struct Kept {
    size_t position;  // as for parameter()
    at::Tensor values;
  };

  /// The scope's parameters have positions: first those in buckets, then the others.
  size_t count() const { return bucketed_.size() + whole_.size(); }
  const at::Tensor& parameter(size_t position) const;
  at::Tensor memory(size_t position) const;
  /// Gives split parameters whole values, and takes them away again.
  void show_wholes();
  void hide_wholes();
  void check_wholes() const;
  void refuse_other_memory(const std::vector<Replaced>& replaced) const;
  void keep_writes();
  void keep_values();
  void follow(const GatherScope& inner);
  void undo();
  std::vector<Replaced> take_replaced();
  std::vector<at::Tensor> sources_of(const std::vector<Replaced>& replaced) const;
  Communicator& sharing() const;
  bool is_modifier() const;
  void broadcast(const std::string& name, const at::Tensor& values) const;
  void share_wholes();
  void share_writes();

  std::shared_ptr<EngineState> state_;
  std::vector<int> bucketed_;      // indices of those parameters that are in buckets
  std::vector<char> in_place_;     // for each of them: it was in its bucket when the scope was opened
  std::vector<at::Tensor> whole_;  // frozen parameters outside of buckets
  std::vector<at::Tensor> memory_of_whole_;
  /// The whole values of those parameters of bucketed_ that are split among tensor ranks.
  struct Whole {
    size_t position;
    at::Tensor values;
    bool is_own;               // else a scope around this one has made it
    bool is_replaced = false;  // by the program, until the end of the scope
  };
  std::vector<Whole> wholes_;
  std::vector<Kept> kept_;  // on the modifier rank: of parameters whose buckets do not undo writes themselves
  std::vector<int> buckets_;  // the buckets of bucketed_, ascending
  std::optional<int> modifier_rank_;
  bool is_open_ = false;
};

class GatheredParameters {
 public:
  /// `parameters`: of the model, trained or frozen. When the scope ends, all ranks get what `modifier_rank`
  /// wrote, also by set_data() with a tensor of the parameter's shape and dtype, which may be the memory of
  /// another parameter of the scope. It is a rank of the job where parameters are split among tensor ranks,
  /// else one of this rank's data group. Without a modifier rank, a write is sure to be kept only if all
  /// ranks make it by the same operator. Throws UserError for a tensor that is not a parameter of the
  /// engine's model. The modifier rank keeps a copy of the parameters until the end.
  GatheredParameters(Engine& engine, const std::vector<at::Tensor>& parameters,
                     std::optional<int> modifier_rank = std::nullopt);
  /// Closes the scope. During stack unwinding the modifier rank's writes are undone. They are undone, too, if
  /// the end throws: UserError on all ranks if the modifier rank gave a parameter memory that does not fit.
  ~GatheredParameters() noexcept(false);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;
  /// Not on the heap: the destructor may throw, and a smart pointer's destructor could not pass the exception
  /// on.
  static void* operator new(size_t) = delete;

 private:
  GatherScope scope_;
  int exceptions_;  // number of uncaught exceptions when the scope was opened
};

}  // namespace zerorun
